// Prints one key for each line of its input: a function and its arguments, as hex with commas.
import { readFileSync } from "node:fs";
import { bucket, invertedTicks, opaque } from "./keys.mjs";

for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  const [name, first, ...rest] = line.split(",").map((field) => Buffer.from(field, "hex"));
  const texts = rest.map(String);
  const made = {
    opaque: () => opaque(first, ...texts),
    bucket: () => bucket(Number(first), ...texts),
    inverted_ticks: () => invertedTicks(String(first)),
  };
  console.log(made[name]());
}
