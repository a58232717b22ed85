"""Pages for people: HTML from the templates in `templates/`. A page is one file without scripts that loads
nothing, which a content security policy enforces."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from rekey.errors import visible
from rekey.present.text import counted, duration, moment, size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(template: str, **values: Any) -> str:
    """Return a page as HTML. `template`: its file in `templates/`; `values`: all but markup are escaped."""
    return _environment().get_template(template).render(values)


def markup(template: str, **values: Any) -> Markup:
    """Return a part of a page as markup; arguments as for `page`."""
    from markupsafe import Markup

    return Markup(page(template, **values))  # noqa: S704 - escaped by the template


def shown(value: Any) -> Any:
    """Return a value with its control characters spelled out: they could reverse a line on a page, too."""
    return value if hasattr(value, "__html__") else visible(str(value))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rekey.present"),
        autoescape=True,
        finalize=shown,
        # A name without a value is an error, never an empty cell.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["policy"] = POLICY
    environment.filters |= {"number": "{:,}".format, "counted": counted, "duration": duration, "size": size}
    environment.filters["moment"] = moment
    return environment
