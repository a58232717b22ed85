// Keys as rekey makes them: opaque ids, buckets, inverted ticks. Node.js 12 or later, without packages.
import { createHash, createHmac } from "node:crypto";

const CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz";

/** The id that keys.opaque(...parts, domain=domain, secret=...) makes; `secret` is a Buffer. */
export function opaque(secret, domain, ...parts) {
  const mac = createHmac("sha256", secret).update(`rekey/v1\0${domain}\0`);
  for (const part of parts.map((text) => Buffer.from(text, "utf8"))) {
    const length = Buffer.alloc(parts.length === 1 ? 0 : 4);
    if (length.length) length.writeUInt32BE(part.length);
    mac.update(length).update(part);
  }
  let number = BigInt("0x" + mac.digest("hex").slice(0, 40)), id = "";
  for (let i = 0; i < 32; i++, number >>= 5n) id = CROCKFORD[Number(number & 31n)] + id;
  return id;
}

/** The name that keys.bucket(count, algorithm, text, prefix) makes. */
export function bucket(count, algorithm, prefix, text) {
  const data = Buffer.from(text, "utf8");
  const hash = () => createHash("sha256").update(data).digest().readBigUInt64BE();
  const number = (algorithm === "crc32" ? BigInt(crc32(data)) : hash()) % BigInt(count);
  return prefix + String(number).padStart(Math.max(3, String(count - 1).length), "0");
}

/** What keys.inverted_ticks makes of a UTC moment, 2024-03-05T10:20:30.1234567Z. */
export function invertedTicks(moment) {
  const [, seconds, fraction = ""] = /^(.{19})(?:\.(\d{1,7}))?(?:Z|\+00:00)$/.exec(moment);
  const since = BigInt(Date.parse(seconds + "Z") / 1000) + 62135596800n;
  return String(3155378975999999999n - since * 10000000n - BigInt(fraction.padEnd(7, "0"))).padStart(19, "0");
}

function crc32(data) {
  let crc = ~0;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}
