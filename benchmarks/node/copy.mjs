// The copy that a careful team writes by hand with Microsoft's SDK for Node.js: pages are read while up to 32
// transactions are under way; every value keeps its type. Writes the target's rows, and to phases.json what each
// phase took. With a second endpoint it also writes two rows for each into the table `rekeymap` there, of the size
// of rekey's sealed mapping rows and in as many partitions: what the server needs for them, whoever sends them.
//
//     node copy.mjs TABLES_ENDPOINT [RESTRICTED_ENDPOINT]
//                                  BENCH_TABLES_KEY, BENCH_RESTRICTED_KEY and BENCH_SECRET in the environment
import { AzureNamedKeyCredential, TableClient } from "@azure/data-tables";
import { createHmac } from "node:crypto";
import { writeFileSync } from "node:fs";

const PAGE = 1000, BATCH = 100, UNDER_WAY = 32, SEALED_BYTES = 156;
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

function table(endpoint, key, name) {
  const credential = new AzureNamedKeyCredential(new URL(endpoint).pathname.slice(1), key);
  return new TableClient(endpoint, name, credential, { allowInsecureConnection: true });
}

const [endpoint, restricted] = process.argv.slice(2);
const { BENCH_TABLES_KEY, BENCH_RESTRICTED_KEY } = process.env;
const source = table(endpoint, BENCH_TABLES_KEY, "Users"), target = table(endpoint, BENCH_TABLES_KEY, "UsersV2");
const mapping = restricted && table(restricted, BENCH_RESTRICTED_KEY, "rekeymap");
const sealed = { type: "Binary", value: Buffer.alloc(SEALED_BYTES).toString("base64") };
ended("start");

await target.createTable();
await mapping?.createTable();
const underWay = new Set();

async function send(to, operations) {
  while (underWay.size >= UNDER_WAY) await Promise.race(underWay);
  const sent = to.submitTransaction(operations).finally(() => underWay.delete(sent));
  underWay.add(sent);
}

const held = new Map([[target, new Map()], [mapping, new Map()]]);  // until they fill a transaction of their partition

async function create(to, row) {
  const operations = held.get(to).get(row.partitionKey) ?? [];
  operations.push(["create", row]);
  held.get(to).set(row.partitionKey, operations);
  if (operations.length === BATCH) {
    held.get(to).delete(row.partitionKey);
    await send(to, operations);
  }
}

for await (const page of source.listEntities({ disableTypeConversion: true }).byPage({ maxPageSize: PAGE })) {
  for (const { etag, timestamp, ...row } of page) {
    for (const direction of mapping ? "fr" : "") {
      const rowKey = opaque(direction + row.partitionKey + row.rowKey);
      const partitionKey = `0001_users.${direction}.${rowKey[0]}`;
      await create(mapping, { partitionKey, rowKey, DataKey: "2024-05-3m9k2v7c", Sealed: sealed });
    }
    await create(target, { ...row, rowKey: opaque(row.rowKey), ContactEmail: row.rowKey });
  }
}
for (const [to, partitions] of held) for (const operations of partitions.values()) await send(to, operations);
await Promise.all(underWay);
ended("copy");
writeFileSync("phases.json", JSON.stringify(phases));
