// Writes rows of its own through a proxy, one call after the other, until its input ends, with Microsoft's package for
// Java, and reads each row back. It prints what `../go/main.go` prints, and takes the same line "updates".
//
//     java -cp "$(cat classpath)" Writer.java ENDPOINT TABLE VIEW    with PROXY_KEY or PROXY_TOKEN set

import com.azure.core.credential.AccessToken;
import com.azure.core.credential.AzureNamedKeyCredential;
import com.azure.data.tables.TableClient;
import com.azure.data.tables.TableClientBuilder;
import com.azure.data.tables.models.ListEntitiesOptions;
import com.azure.data.tables.models.TableEntity;
import com.azure.data.tables.models.TableEntityUpdateMode;
import com.azure.data.tables.models.TableServiceException;
import com.azure.data.tables.models.TableTransactionAction;
import com.azure.data.tables.models.TableTransactionActionType;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import reactor.core.publisher.Mono;

public class Writer {
    static final int OWN = 12;
    static final ObjectMapper JSON = new ObjectMapper();
    static volatile boolean updates, ending;

    final TableClient client;
    final String partition, prefix;
    final long[] known = new long[OWN];

    Writer(TableClient client, String view) {
        this.client = client;
        partition = view.equals("new") ? "p:eu" : "eu";
        prefix = (view.equals("new") ? "r:" : "") + "java-" + view + "-";
    }

    public static void main(String[] words) throws Exception {
        String endpoint = words[0], table = words[1], view = words[2];
        TableClientBuilder builder = new TableClientBuilder().endpoint(endpoint).tableName(table);
        String token = System.getenv("PROXY_TOKEN");
        if (token == null) {
            String account = URI.create(endpoint).getPath().substring(1);
            builder.credential(new AzureNamedKeyCredential(account, System.getenv("PROXY_KEY")));
        } else {
            builder.credential(context -> Mono.just(new AccessToken(token, OffsetDateTime.now().plusHours(1))));
        }
        Writer writer = new Writer(builder.buildClient(), view);
        Thread follows = new Thread(Writer::follow);
        follows.setDaemon(true);
        follows.start();
        boolean told = false;
        for (long number = 1; !ending; number++) {
            if (updates && !told) {
                told = true;
                say(Map.of("updates", true));
            }
            try {
                writer.step(number, told);
            } catch (Exception error) {
                say(Map.of("refused", String.valueOf(error.getMessage()), "number", number));
                System.exit(1);
            }
        }
        System.exit(0);
    }

    static void follow() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            while (lines.readLine() != null) {
                updates = true;
            }
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        ending = true;
    }

    static void say(Map<String, ?> line) throws JsonProcessingException {
        System.out.println(JSON.writeValueAsString(line));
    }

    TableEntity row(int at, long number) {
        String name = prefix + at;
        TableEntity row = new TableEntity(partition, name);
        row.addProperty("Number", number);
        row.addProperty("When", Instant.ofEpochSecond(1_600_000_000 + number, number % 1000 * 1_000_000).atOffset(ZoneOffset.UTC));
        row.addProperty("Ratio", number / 4.0);
        row.addProperty("Bytes", name.getBytes(StandardCharsets.UTF_8));
        row.addProperty("Text", "käse 🧀");
        row.addProperty("Active", number % 2 == 0);
        row.addProperty("Group", "g" + number % 5);
        if (prefix.startsWith("r:")) {
            row.addProperty("OldPartition", "eu");
            row.addProperty("OldRow", name.substring(2));
        }
        return row;
    }

    /** Makes one write, reads its row back, and now and then looks at all of its rows. */
    void step(long number, boolean onlyUpdates) throws Exception {
        int at = (int) (number % OWN);
        TableEntity now = row(at, number);
        long there = known[at];
        String etag = look(now, there);
        List<TableEntity> rows = new ArrayList<>(List.of(now));
        String verb;
        long turn = number / OWN % 6;
        if (onlyUpdates && there == 0) {
            return;
        }
        if (onlyUpdates) {
            now.getProperties().remove("Group"); // which the index row is made of
            verb = update(now, etag);
        } else if (there == 0 && turn % 2 == 0) {
            verb = "insert";
            client.createEntity(now);
        } else if (there != 0 && turn == 1) {
            verb = "remove";
            now.getProperties().put("odata.etag", etag);
            client.deleteEntityWithResponse(now, true, null, null);
        } else if (turn == 2) {
            verb = "replace";
            client.upsertEntityWithResponse(now, TableEntityUpdateMode.REPLACE, null, null);
        } else if (turn == 3) {
            verb = "merge";
            client.upsertEntityWithResponse(now, TableEntityUpdateMode.MERGE, null, null);
        } else if (there != 0 && turn == 4) {
            verb = update(now, etag);
        } else {
            verb = "batch";
            rows.add(row((at + 1) % OWN, number));
            List<TableTransactionAction> actions = new ArrayList<>();
            for (TableEntity each : rows) {
                actions.add(new TableTransactionAction(TableTransactionActionType.UPSERT_REPLACE, each));
            }
            client.submitTransaction(actions);
        }
        for (int place = 0; place < rows.size(); place++) {
            known[(at + place) % OWN] = tell(rows.get(place), verb);
        }
        look(now, known[at]);
        if (at == 0) {
            count();
        }
    }

    String update(TableEntity row, String etag) {
        row.getProperties().put("odata.etag", etag);
        client.updateEntityWithResponse(row, TableEntityUpdateMode.MERGE, true, null, null);
        return "update";
    }

    /** Reads a row until it has a number, 0 for no row, and returns its ETag. */
    String look(TableEntity row, long number) throws Exception {
        String[] etag = {""};
        until(() -> {
            long found = 0;
            try {
                TableEntity read = client.getEntity(row.getPartitionKey(), row.getRowKey());
                found = (Long) read.getProperty("Number");
                etag[0] = read.getETag();
            } catch (TableServiceException error) {
                if (error.getResponse().getStatusCode() != 404) {
                    throw error;
                }
            }
            return found == number ? null : "row " + row.getRowKey() + " has number " + found + ", not " + number;
        });
        return etag[0];
    }

    void count() throws Exception {
        long expected = java.util.Arrays.stream(known).filter(number -> number != 0).count();
        String filter = "PartitionKey eq '%s' and RowKey ge '%s' and RowKey lt '%s~'".formatted(partition, prefix, prefix);
        until(() -> {
            long found = client.listEntities(new ListEntitiesOptions().setFilter(filter).setTop(3), null, null).stream().count();
            return found == expected ? null : "a query gives " + found + " rows of " + expected;
        });
    }

    /** Repeats a read that does not show what was written: the side that follows is behind where a write timed out. */
    static void until(Supplier<String> read) throws Exception {
        long start = System.nanoTime();
        for (int tries = 0; ; tries++) {
            String behind = read.get();
            if (behind == null) {
                return;
            }
            if (System.nanoTime() - start > Duration.ofMinutes(1).toNanos()) {
                throw new IllegalStateException(behind);
            }
            if (tries == 0) {
                say(Map.of("behind", behind));
            }
            Thread.sleep(200);
        }
    }

    /** Prints an acknowledged write, and returns the number of its row from now on. */
    long tell(TableEntity row, String verb) throws JsonProcessingException {
        String name = row.getRowKey();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("row", name.startsWith("r:") ? name.substring(2) : name);
        boolean removed = verb.equals("remove");
        line.put("number", removed ? null : row.getProperty("Number"));
        if (!removed) {
            line.put("when", row.getProperty("When").toString());
        }
        line.put("verb", verb);
        say(line);
        return removed ? 0 : (Long) row.getProperty("Number");
    }
}
