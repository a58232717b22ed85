// Calls of the package `azure-storage` on one table, told as JSON: what came of each, without what differs from
// run to run.
//
//     node --input-type=module --eval "$(cat proxy_calls_storage.mjs)" ENDPOINT TABLE    PROXY_KEY in the environment
import storage from "azure-storage";

const [endpoint, table] = process.argv.slice(1);
const account = new URL(endpoint).pathname.slice(1);
const service = storage.createTableService(
  `DefaultEndpointsProtocol=http;AccountName=${account};AccountKey=${process.env.PROXY_KEY};TableEndpoint=${endpoint};`);
const { TableQuery, TableBatch, TableUtilities: { entityGenerator: edm } } = storage;
const told = [];
const plain = (value) => {
  if (value === undefined || value === null || typeof value !== "object") return value;
  if (value instanceof Date) return value.toISOString();
  if (Buffer.isBuffer(value)) return [...value];
  if (Array.isArray(value)) return value.map(plain);
  const kept = Object.entries(value).filter(([name]) => !/^(\.metadata|Timestamp|headers|requestId|etag|md5)$/i.test(name));
  return Object.fromEntries(kept.map(([name, one]) => [name, plain(one)]));
};

async function tell(name, method, ...words) {
  const result = await new Promise((done) => service[method](...words, (error, value, response) => {
    told.push(error ? [name, "failed", error.statusCode, error.code] : [name, response?.statusCode, plain(value)]);
    done(error ? undefined : value);
  }));
  return result;
}

const key = (rowKey) => ({ PartitionKey: edm.String("eu"), RowKey: edm.String(rowKey) });
const row = (rowKey, more) => ({ ...key(rowKey), Nm: edm.String("A"), ...more });
const every = { Int: edm.Int32(7), Big: edm.Int64("9007199254740993"), Half: edm.Double(2.5), Yes: edm.Boolean(true),
  At: edm.DateTime(new Date("2024-02-29T12:00:00Z")), Bytes: edm.Binary(Buffer.from([0, 255])),
  Guid: edm.Guid("c9da6455-213d-42c9-9a79-3e9149a57833") };
await tell("exists", "doesTableExist", table);
const made = await tell("insert", "insertEntity", table, row("a'b", every));
await tell("insert and echo", "insertEntity", table, row("echo", every), { echoContent: true });
await tell("insert again", "insertEntity", table, row("a'b"));
await tell("retrieve", "retrieveEntity", table, "eu", "a'b");
await tell("merge", "mergeEntity", table, row("a'b", { More: edm.String("käse"), ".metadata": made?.[".metadata"] }));
await tell("stale", "replaceEntity", table, row("a'b", { More: edm.String("x"), ".metadata": made?.[".metadata"] }));
await tell("replace", "replaceEntity", table, row("a'b", { More: edm.String("y") }));
await tell("insert or replace", "insertOrReplaceEntity", table, row("or"));
await tell("insert or merge", "insertOrMergeEntity", table, row("or", { B: edm.Int32(1) }));
await tell("none", "retrieveEntity", table, "eu", "none");
const batch = new TableBatch();
batch.insertEntity(row("t1"));
batch.insertOrMergeEntity(row("t2", { A: edm.Int32(1) }));
batch.mergeEntity(row("a'b", { B: edm.Int32(1) }));
await tell("batch", "executeBatch", table, batch);
const failing = new TableBatch();
failing.insertEntity(row("t3"));
failing.insertEntity(row("t1"));
await tell("failing batch", "executeBatch", table, failing);
await tell("query", "queryEntities", table, new TableQuery().where("PartitionKey eq ? and Nm eq ?", "eu", "A"), null);
let token = null, pages = 0;
do {
  const page = await tell("page", "queryEntities", table, new TableQuery().top(2).select(["Nm"]), token);
  told.pop();
  told.push(["page", page?.entries.length]);
  token = page?.continuationToken;
} while (token && ++pages < 9);
await tell("delete", "deleteEntity", table, key("t1"));
await tell("delete again", "deleteEntity", table, key("t1"));
await tell("policies", "getTableAcl", table);
const ends = new Date("2200-01-01T00:00:00Z");
const sas = service.generateSharedAccessSignature(table, { AccessPolicy: { Permissions: "r", Expiry: ends } });
const reader = storage.createTableServiceWithSas(endpoint, sas);
for (const [name, call] of [["read", "retrieveEntity"], ["write", "insertEntity"]]) {
  await new Promise((done) => reader[call](table, ...(name === "read" ? ["eu", "or"] : [row("s")]), (error) => {
    told.push(["signed", name, error ? [error.statusCode, error.code] : "done"]);
    done();
  }));
}
console.log(JSON.stringify(told));
