"""Copying and comparing by several processes or machines: tasks of plain data for any executor."""
