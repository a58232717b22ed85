// Calls of Microsoft's SDK for Node.js on one table, told as JSON: what came of each, without what differs
// from run to run.
//
//     node --input-type=module --eval "$(cat proxy_calls.mjs)" ENDPOINT TABLE        PROXY_KEY in the environment
import { AzureNamedKeyCredential, TableClient, TableTransaction, odata } from "@azure/data-tables";

const [endpoint, table] = process.argv.slice(1);
const credential = new AzureNamedKeyCredential(new URL(endpoint).pathname.slice(1), process.env.PROXY_KEY);
const client = new TableClient(endpoint, table, credential, { allowInsecureConnection: true });
const told = [];
const plain = (value) => {
  if (value === undefined || value === null || typeof value !== "object") return value;
  if (value instanceof Date || typeof value === "bigint") return String(value);
  if (ArrayBuffer.isView(value)) return [...value];
  if (Array.isArray(value)) return value.map(plain);
  const kept = Object.entries(value).filter(([name]) => !/date|etag|timestamp|requestid|metadata|getresponse|^version$|^contentType$/i.test(name));
  return Object.fromEntries(kept.map(([name, one]) => [name, typeof one === "bigint" ? `${one}n` : plain(one)]));
};

async function tell(name, call) {
  try {
    const result = await call();
    told.push([name, plain(result), typeof result?.etag]);
    return result;
  } catch (error) {
    told.push([name, "failed", error.statusCode, error.code, error.details?.odataError?.code]);
  }
}

const row = (rowKey, more) => ({ partitionKey: "eu", rowKey, Nm: "A", ...more });
const every = { Int: 7, Big: 9007199254740993n, Half: 2.5, Yes: true, At: new Date("2024-02-29T12:00:00Z"),
  Bytes: new Uint8Array([0, 255]), Guid: { type: "Guid", value: "c9da6455-213d-42c9-9a79-3e9149a57833" } };
const made = await tell("create", () => client.createEntity(row("a'b", every)));
await tell("create again", () => client.createEntity(row("a'b")));
await tell("get", () => client.getEntity("eu", "a'b"));
await tell("select", () => client.getEntity("eu", "a'b", { queryOptions: { select: ["Int"] } }));
await tell("merge", () => client.updateEntity(row("a'b", { More: "käse" }), "Merge", { etag: made.etag }));
await tell("stale", () => client.updateEntity(row("a'b", { More: 2 }), "Replace", { etag: made.etag }));
await tell("upsert", () => client.upsertEntity(row("c/d".replace("/", "-")), "Replace"));
await tell("none", () => client.getEntity("eu", "none"));
const several = new TableTransaction();
several.createEntity(row("t1"));
several.upsertEntity(row("t2", { A: 1 }), "Merge");
several.updateEntity(row("a'b", { B: 1 }), "Merge");
const answer = await tell("transaction", () => client.submitTransaction(several.actions));
told.push(["for a row", answer?.getResponseForEntity("t1")?.status]);
await tell("failing transaction", () => client.submitTransaction([["create", row("t3")], ["create", row("t1")]]));
const listed = [];
for await (const one of client.listEntities({ queryOptions: { filter: odata`PartitionKey eq ${"eu"}` } })) listed.push(plain(one));
told.push(["list", listed]);
for await (const page of client.listEntities().byPage({ maxPageSize: 2 })) told.push(["page", page.length]);
await tell("delete", () => client.deleteEntity("eu", "t1"));
await tell("delete again", () => client.deleteEntity("eu", "t1"));
console.log(JSON.stringify(told));
