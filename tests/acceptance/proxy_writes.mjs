// Writes rows of its own through proxies, one write after the other, until its input ends; tells each write that was
// acknowledged as a line of JSON: the row, and its number, null for a deleted one. What was not acknowledged is tried
// again through the next proxy. A refusal that is no invitation to try again ends it.
//
//     node --input-type=module --eval "$(cat proxy_writes.mjs)" PACKAGE ENDPOINT,ENDPOINT TABLE VIEW    PROXY_KEY or PROXY_TOKEN set
const [kind, endpoints, table, view] = process.argv.slice(1);
const account = new URL(endpoints.split(",")[0]).pathname.slice(1), key = process.env.PROXY_KEY;
const own = `${kind.replace(/\W/g, "")}-${view}-`;
let open;
if (kind === "azure-storage") {
  const { default: storage } = await import("azure-storage");
  const { String: text, Int32: int } = storage.TableUtilities.entityGenerator;
  const call = (service, method, ...words) => new Promise((done, failed) =>
    service[method](table, ...words, (error, value) => error ? failed(error) : done(value)));
  const entity = (keys, more) => Object.fromEntries(Object.entries({ ...keys, ...more }).map(
    ([name, value]) => [name, typeof value === "number" ? int(value) : text(value)]));
  open = (endpoint) => {
    const service = storage.createTableService(
      `DefaultEndpointsProtocol=http;AccountName=${account};AccountKey=${key};TableEndpoint=${endpoint};`);
    return {
      replace: (keys, more) => call(service, "insertOrReplaceEntity", entity(keys, more)),
      merge: (keys, more) => call(service, "insertOrMergeEntity", entity(keys, more)),
      remove: (keys) => call(service, "deleteEntity", entity(keys, {})),
    };
  };
} else {
  const { AzureNamedKeyCredential, TableClient } = await import("@azure/data-tables");
  open = (endpoint) => {
    const token = process.env.PROXY_TOKEN, options = { allowInsecureConnection: !token, retryOptions: { maxRetries: 0 } };
    const credential = token ? { getToken: async () => ({ token, expiresOnTimestamp: Date.now() + 3_600_000 }) }
      : new AzureNamedKeyCredential(account, key);
    const client = new TableClient(endpoint, table, credential, options);
    const entity = ({ PartitionKey: partitionKey, RowKey: rowKey }, more) => ({ partitionKey, rowKey, ...more });
    return {
      replace: (keys, more) => client.upsertEntity(entity(keys, more), "Replace"),
      merge: (keys, more) => client.upsertEntity(entity(keys, more), "Merge"),
      remove: (keys) => client.deleteEntity(keys.PartitionKey, keys.RowKey),
    };
  };
}
const services = endpoints.split(",").map(open);
let ending = false, at = 0;
process.stdin.on("data", () => {}).on("end", () => { ending = true; });
for (let number = 1; !ending; number++) {
  const name = own + (number % 20), old = { OldPartition: "eu", OldRow: name };
  const keys = view === "old" ? { PartitionKey: "eu", RowKey: name } : { PartitionKey: name, RowKey: "eu" };
  const more = view === "old" ? { Number: number } : { ...old, Number: number };
  const verb = number % 7 === 0 ? "remove" : number % 3 === 0 ? "merge" : "replace";
  for (let tries = 0; ; tries++) {
    try {
      await services[at][verb](keys, more);
      break;
    } catch (error) {
      const status = error.statusCode ?? 0;
      if (verb === "remove" && status === 404) break;
      if (![0, 500, 503].includes(status)) {
        console.log(JSON.stringify({ refused: status, code: error.code ?? error.details?.odataError?.code, verb }));
        process.exit(1);
      }
      at = (at + 1) % services.length;
      await new Promise((done) => setTimeout(done, 100));
    }
  }
  console.log(JSON.stringify({ row: name, number: verb === "remove" ? null : number }));
}
