// Writes rows of its own through a proxy, one call after the other, until its input ends, with one of Microsoft's two
// packages for Go, and reads each row back. It prints a line of JSON for each acknowledged write: the row, and its
// number, null for a deleted one. It prints `refused` and ends where a call fails or a row is not as it was written;
// both packages retry by themselves what the service invites them to. A line "updates" in its input: from then on rows
// are neither inserted nor deleted, and the next line of output is {"updates": true}.
//
//	go run . PACKAGE ENDPOINT TABLE VIEW    with PROXY_KEY or PROXY_TOKEN set
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/Azure/azure-sdk-for-go/storage"
)

type row struct {
	partition, name string
	values          map[string]any
}

// rows is what both packages can do. number returns the number of a row, 0 where there is no row, and its ETag.
type rows interface {
	insert(row) error
	replace(row) error
	merge(row) error
	conditional(row, string) error
	batch([]row) error
	remove(row, string) error
	number(row) (int64, string, error)
	count(partition, prefix string) (int, error)
}

func open(kind, endpoint, account, key, table string) (rows, error) {
	if kind == "storage" {
		return openStorage(endpoint, account, key, table)
	}
	return openTables(endpoint, account, key, table)
}

func filterOf(partition, prefix string) string {
	return fmt.Sprintf("PartitionKey eq '%s' and RowKey ge '%s' and RowKey lt '%s~'", partition, prefix, prefix)
}

// The package storage. Its endpoint is fixed for the account of the emulator, so that connections lead to the proxy.
type oldRows struct{ table *storage.Table }

func openStorage(endpoint, account, key, table string) (rows, error) {
	client, err := storage.NewClient(account, key, storage.DefaultBaseURL, storage.DefaultAPIVersion, false)
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address.Host)
	}
	client.HTTPClient = &http.Client{Transport: &http.Transport{DialContext: dial}}
	service := client.GetTableService()
	return oldRows{service.GetTableReference(table)}, nil
}

func (r oldRows) entity(of row) *storage.Entity {
	entity := r.table.GetEntityReference(of.partition, of.name)
	entity.Properties = of.values
	return entity
}

func (r oldRows) insert(of row) error {
	return r.entity(of).Insert(storage.EmptyPayload, &storage.EntityOptions{Timeout: 30})
}
func (r oldRows) replace(of row) error { return r.entity(of).InsertOrReplace(nil) }
func (r oldRows) merge(of row) error   { return r.entity(of).InsertOrMerge(nil) }

func (r oldRows) conditional(of row, etag string) error {
	entity := r.entity(of)
	entity.OdataEtag = etag
	return entity.Merge(false, nil)
}

func (r oldRows) batch(all []row) error {
	batch := r.table.NewBatch()
	for _, of := range all {
		batch.InsertOrReplaceEntityByForce(r.entity(of))
	}
	return batch.ExecuteBatch()
}

func (r oldRows) remove(of row, etag string) error {
	entity := r.entity(of)
	entity.OdataEtag = etag
	return entity.Delete(etag == "", nil)
}

func (r oldRows) number(of row) (int64, string, error) {
	entity := r.entity(row{of.partition, of.name, nil})
	options := &storage.GetEntityOptions{Select: []string{"Number"}}
	if err := entity.Get(30, storage.FullMetadata, options); err != nil {
		var failed storage.AzureStorageServiceError
		if errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
			return 0, "", nil
		}
		return 0, "", err
	}
	number, is := entity.Properties["Number"].(int64)
	if !is {
		return 0, "", fmt.Errorf("number is %T", entity.Properties["Number"])
	}
	return number, entity.OdataEtag, nil
}

func (r oldRows) count(partition, prefix string) (int, error) {
	filter := filterOf(partition, prefix)
	options := &storage.QueryOptions{Filter: filter, Top: 3, Select: []string{"Number"}}
	page, err := r.table.QueryEntities(30, storage.MinimalMetadata, options)
	found := 0
	for ; err == nil; page, err = page.NextResults(nil) {
		found += len(page.Entities)
		if page.NextLink == nil {
			return found, nil
		}
	}
	return found, err
}

// The module aztables.
type newRows struct{ client *aztables.Client }

// token is a credential that has its token already.
type token string

func (t token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(t), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func openTables(endpoint, account, key, table string) (rows, error) {
	if held := os.Getenv("PROXY_TOKEN"); held != "" {
		client, err := aztables.NewClient(endpoint+"/"+table, token(held), nil)
		return newRows{client}, err
	}
	credential, err := aztables.NewSharedKeyCredential(account, key)
	if err != nil {
		return nil, err
	}
	client, err := aztables.NewClientWithSharedKey(endpoint+"/"+table, credential, nil)
	return newRows{client}, err
}

func (r newRows) entity(of row) []byte {
	properties := map[string]any{}
	for name, value := range of.values {
		switch value := value.(type) {
		case int64:
			properties[name] = aztables.EDMInt64(value)
		case time.Time:
			properties[name] = aztables.EDMDateTime(value.UTC()) // it sends any zone's time as if it were UTC
		case []byte:
			properties[name] = aztables.EDMBinary(value)
		default:
			properties[name] = value
		}
	}
	entity := aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: of.partition, RowKey: of.name}, Properties: properties}
	body, err := json.Marshal(entity)
	if err != nil {
		panic(err)
	}
	return body
}

func (r newRows) insert(of row) error {
	_, err := r.client.AddEntity(context.Background(), r.entity(of), nil)
	return err
}

func (r newRows) replace(of row) error {
	options := &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeReplace}
	_, err := r.client.UpsertEntity(context.Background(), r.entity(of), options)
	return err
}

func (r newRows) merge(of row) error {
	options := &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeMerge}
	_, err := r.client.UpsertEntity(context.Background(), r.entity(of), options)
	return err
}

func (r newRows) conditional(of row, etag string) error {
	options := &aztables.UpdateEntityOptions{IfMatch: to.Ptr(azcore.ETag(etag)), UpdateMode: aztables.UpdateModeMerge}
	_, err := r.client.UpdateEntity(context.Background(), r.entity(of), options)
	return err
}

func (r newRows) batch(all []row) error {
	actions := []aztables.TransactionAction{}
	for _, of := range all {
		action := aztables.TransactionAction{ActionType: aztables.TransactionTypeInsertReplace, Entity: r.entity(of)}
		actions = append(actions, action)
	}
	_, err := r.client.SubmitTransaction(context.Background(), actions, nil)
	return err
}

func (r newRows) remove(of row, etag string) error {
	options := &aztables.DeleteEntityOptions{IfMatch: nil}
	if etag != "" {
		options.IfMatch = to.Ptr(azcore.ETag(etag))
	}
	_, err := r.client.DeleteEntity(context.Background(), of.partition, of.name, options)
	return err
}

func (r newRows) number(of row) (int64, string, error) {
	answer, err := r.client.GetEntity(context.Background(), of.partition, of.name, nil)
	if err != nil {
		var failed *azcore.ResponseError
		if errors.As(err, &failed) && failed.StatusCode == http.StatusNotFound {
			return 0, "", nil
		}
		return 0, "", err
	}
	entity := aztables.EDMEntity{}
	if err := json.Unmarshal(answer.Value, &entity); err != nil {
		return 0, "", err
	}
	number, is := entity.Properties["Number"].(aztables.EDMInt64)
	if !is {
		return 0, "", fmt.Errorf("number is %T", entity.Properties["Number"])
	}
	return int64(number), string(answer.ETag), nil
}

func (r newRows) count(partition, prefix string) (int, error) {
	filter := filterOf(partition, prefix)
	pager := r.client.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter, Top: to.Ptr(int32(3))})
	found := 0
	for pager.More() {
		page, err := pager.NextPage(context.Background())
		if err != nil {
			return found, err
		}
		found += len(page.Entities)
	}
	return found, nil
}

const own = 12

var zone = time.FixedZone("", 2*60*60)

func main() {
	kind, endpoint, table, view := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	address, err := url.Parse(endpoint)
	if err != nil {
		panic(err)
	}
	service, err := open(kind, endpoint, path.Base(address.Path), os.Getenv("PROXY_KEY"), table)
	if err != nil {
		panic(err)
	}
	writer := &writer{rows: service, partition: "eu", prefix: kind + "-" + view + "-"}
	if view == "new" {
		writer.partition, writer.prefix = "p:eu", "r:"+writer.prefix
	}
	var updates, ending atomic.Bool
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			updates.Store(true)
		}
		ending.Store(true)
	}()
	for told, number := false, int64(1); !ending.Load(); number++ {
		if updates.Load() && !told {
			told = true
			say(map[string]any{"updates": true})
		}
		if err := writer.step(number, told); err != nil {
			say(map[string]any{"refused": err.Error(), "number": number})
			os.Exit(1)
		}
	}
}

func say(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

// writer knows what it wrote: nobody else writes its rows.
type writer struct {
	rows
	partition, prefix string
	known             [own]int64
}

func (w *writer) row(at int, number int64) row {
	name := fmt.Sprint(at)
	values := map[string]any{
		"Number": number,
		// An offset and up to nine digits: the package storage sends both as they are.
		"When":   time.Unix(1_600_000_000+number, number%1000*1_000_001).In(zone),
		"Ratio":  float64(number) / 4,
		"Bytes":  []byte(name),
		"Text":   "käse 🧀",
		"Active": number%2 == 0,
		"Group":  fmt.Sprintf("g%d", number%5),
	}
	if w.partition != "eu" {
		values["OldPartition"], values["OldRow"] = "eu", strings.TrimPrefix(w.prefix, "r:")+name
	}
	return row{w.partition, w.prefix + name, values}
}

// step makes one write, reads its row back, and now and then looks at all of its rows.
func (w *writer) step(number int64, updates bool) error {
	at := int(number % own)
	now := w.row(at, number)
	there := w.known[at]
	etag, err := w.look(now, there)
	if err != nil {
		return err
	}
	rows, verb := []row{now}, ""
	switch turn := number / own % 6; {
	case updates && there == 0:
		return nil
	case updates:
		delete(now.values, "Group") // which the index row is made of
		verb, err = "update", w.conditional(now, etag)
	case there == 0 && turn%2 == 0:
		verb, err = "insert", w.insert(now)
	case there != 0 && turn == 1:
		verb, err = "remove", w.remove(now, etag)
		number = 0
	case turn == 2:
		verb, err = "replace", w.replace(now)
	case turn == 3:
		verb, err = "merge", w.merge(now)
	case there != 0 && turn == 4:
		verb, err = "update", w.conditional(now, etag)
	default:
		rows = append(rows, w.row((at+1)%own, number))
		verb, err = "batch", w.batch(rows)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	for number := range rows {
		w.known[(at+number)%own] = w.tell(rows[number], verb)
	}
	if _, err = w.look(now, w.known[at]); err != nil || at > 0 {
		return err
	}
	expected := 0
	for _, one := range w.known {
		if one != 0 {
			expected++
		}
	}
	return until(func() error {
		found, err := w.count(w.partition, w.prefix)
		if err == nil && found != expected {
			return behind{fmt.Sprintf("a query gives %d rows of %d", found, expected)}
		}
		return err
	})
}

// look reads a row until it has a number, and returns its ETag.
func (w *writer) look(of row, number int64) (etag string, err error) {
	err = until(func() error {
		found, tag, err := w.number(of)
		etag = tag
		if err == nil && found != number {
			return behind{fmt.Sprintf("row %s has number %d, not %d", of.name, found, number)}
		}
		return err
	})
	return etag, err
}

// behind is the error of a read that does not show what was written.
type behind struct{ what string }

func (b behind) Error() string { return b.what }

// until repeats a read: no replica fails a write, so the side that follows is behind where one timed out.
func until(read func() error) error {
	for start, tries := time.Now(), 0; ; tries++ {
		err := read()
		if late := (behind{}); !errors.As(err, &late) || time.Since(start) > time.Minute {
			return err
		}
		if tries == 0 {
			say(map[string]any{"behind": err.Error()})
		}
		time.Sleep(time.Second / 5)
	}
}

// tell prints an acknowledged write, and returns the number of its row from now on.
func (w *writer) tell(of row, verb string) int64 {
	name, number := strings.TrimPrefix(of.name, "r:"), of.values["Number"].(int64)
	if verb == "remove" {
		say(map[string]any{"row": name, "number": nil, "verb": verb})
		return 0
	}
	when := of.values["When"].(time.Time).Format(time.RFC3339Nano)
	say(map[string]any{"row": name, "number": number, "when": when, "verb": verb})
	return number
}
