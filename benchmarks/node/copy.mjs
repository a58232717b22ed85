// The copy that a careful team writes by hand with Microsoft's SDK for Node.js: pages are read while up to 32
// transactions are under way; every value keeps its type. Writes the target's rows, and to phases.json what each
// phase took.
//
//     node copy.mjs TABLES_ENDPOINT        BENCH_TABLES_KEY and BENCH_SECRET in the environment
import { AzureNamedKeyCredential, TableClient } from "@azure/data-tables";
import { createHmac } from "node:crypto";
import { writeFileSync } from "node:fs";

const PAGE = 1000, BATCH = 100, UNDER_WAY = 32;
const DIGITS = "0123456789abcdefghjkmnpqrstvwxyz";
const phases = {};
let before = { seconds: 0, cpu: 0 };  // since the process began

function ended(phase) {
  const { user, system } = process.cpuUsage();
  const now = { seconds: performance.now() / 1e3, cpu: (user + system) / 1e6 };
  phases[phase] = { seconds: now.seconds - before.seconds, cpu_seconds: now.cpu - before.cpu };
  before = now;
}

function opaque(value) {
  const digest = createHmac("sha256", process.env.BENCH_SECRET).update("rekey/v1\0user\0").update(value).digest();
  let bits = 0, held = 0, text = "";
  for (const byte of digest.subarray(0, 20)) {
    held = (held << 8) | byte;
    for (bits += 8; bits >= 5; bits -= 5) text += DIGITS[(held >> (bits - 5)) & 31];
    held &= (1 << bits) - 1;
  }
  return text;
}

const [endpoint] = process.argv.slice(2);
const credential = new AzureNamedKeyCredential(new URL(endpoint).pathname.slice(1), process.env.BENCH_TABLES_KEY);
const table = (name) => new TableClient(endpoint, name, credential, { allowInsecureConnection: true });
const source = table("Users"), target = table("UsersV2");
ended("start");

await target.createTable();
const underWay = new Set();

async function send(operations) {
  while (underWay.size >= UNDER_WAY) await Promise.race(underWay);
  const sent = target.submitTransaction(operations).finally(() => underWay.delete(sent));
  underWay.add(sent);
}

const partitions = new Map();  // rows wait until they fill a transaction of their partition
for await (const page of source.listEntities({ disableTypeConversion: true }).byPage({ maxPageSize: PAGE })) {
  for (const { etag, timestamp, ...row } of page) {
    const operations = partitions.get(row.partitionKey) ?? [];
    operations.push(["create", { ...row, rowKey: opaque(row.rowKey), ContactEmail: row.rowKey }]);
    partitions.set(row.partitionKey, operations);
    if (operations.length === BATCH) {
      partitions.delete(row.partitionKey);
      await send(operations);
    }
  }
}
for (const operations of partitions.values()) await send(operations);
await Promise.all(underWay);
ended("copy");
writeFileSync("phases.json", JSON.stringify(phases));
