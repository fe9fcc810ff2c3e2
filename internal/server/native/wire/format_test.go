package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/netproto"
	"penstock/tests/support/formattest"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

var limits = map[string]int64{
	"MaxTokenBytes": MaxTokenBytes, "MaxNameBytes": MaxNameBytes, "MaxTextBytes": MaxTextBytes,
	"MaxTopicCount": MaxTopicCount, "MaxNodeCount": MaxNodeCount, "MaxPartitionCount": MaxPartitionCount,
	"MaxIDCount": MaxIDCount, "MaxDeliveryCount": MaxDeliveryCount, "MaxHeaderCount": batch.MaxHeaderCount,
	"MaxMessageBytes": MaxMessageBytes, "DeliverBytes": DeliverBytes, "MaxCreditBytes": MaxCreditBytes,
	"NoPartition": NoPartition, "NoLeader": NoLeader,
	"ProduceBytes": ProduceBytes, "RecordsBytes": RecordsBytes,
}

// types has the name of each type, and the message that it carries when its status is OK.
var types = map[netproto.Type]struct {
	name string
	m    Payload
}{
	TypeAuth: {"Auth", &Auth{}}, TypeAuthAck: {"AuthAck", &Outcome{}},
	TypeMetadata: {"Metadata", &MetadataRequest{}}, TypeMetadataReply: {"MetadataReply", &Metadata{}},
	TypeOpenProducer: {"OpenProducer", &OpenProducer{}}, TypeProducer: {"Producer", &Producer{}},
	TypeProduce: {"Produce", &Produce{}}, TypeProduced: {"Produced", &Produced{}},
	TypeRead: {"Read", &Read{}}, TypeRecords: {"Records", &Records{}},
	TypeReadCredit: {"ReadCredit", &ReadCredit{}}, TypeReadEnd: {"ReadEnd", &Outcome{}},
	TypeGoAway:    {"GoAway", &Outcome{}},
	TypeSubscribe: {"Subscribe", &Subscribe{}}, TypeSubscribed: {"Subscribed", &Subscribed{}},
	TypeDeliver: {"Deliver", &Deliver{}}, TypeCredit: {"Credit", &Credit{}},
	TypeFinish: {"Finish", &Handles{}}, TypeFinishThrough: {"FinishThrough", &FinishThrough{}},
	TypeRequeue: {"Requeue", &Requeue{}}, TypeTouch: {"Touch", &Handles{}}, TypeRefused: {"Refused", &Refused{}},
	TypeSync: {"Sync", &Sync{}}, TypeSynced: {"Synced", &Outcome{}},
	TypeSubscribeEnd:   {"SubscribeEnd", &Outcome{}},
	TypeDeliverOrdered: {"DeliverOrdered", &DeliverOrdered{}}, TypeRecall: {"Recall", &Recall{}},
}

// The tables of types, limits and places are those of the code.
func TestFormatNumbers(t *testing.T) {
	found := formattest.Tables(t)
	if len(found["Types"]) != len(types) {
		t.Errorf("%d types, the code has %d", len(found["Types"]), len(types))
	}
	for _, row := range found["Types"] {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		typ := netproto.Type(n)
		m, rest, batches := strings.Cut(row[3], ", then ")
		if want := types[typ]; want.name != row[1] || want.m == nil || m != reflect.TypeOf(want.m).Elem().Name() {
			t.Errorf("type %d is %q with %q, the code says %q with %T", n, row[1], row[3], want.name, want.m)
		}
		if batches != (typ == TypeProduce || typ == TypeRecords) {
			t.Errorf("%s has %q behind its head", row[1], rest)
		}
		if typ.String() != "type "+row[0] {
			t.Errorf("package netproto has a type %d, too: %v", n, typ)
		}
	}
	if len(found["Limits"]) != len(limits) {
		t.Errorf("%d limits, the code has %d", len(found["Limits"]), len(limits))
	}
	for _, row := range found["Limits"] {
		if row[1] != strconv.FormatInt(limits[row[0]], 10) {
			t.Errorf("%s is %s, the code says %d", row[0], row[1], limits[row[0]])
		}
	}
	places := map[string]From{
		"ID": FromID, "Time": FromTime, "Oldest": FromOldest, "Newest": FromNewest, "Default": FromDefault,
	}
	if len(found["Places"]) != len(places) {
		t.Errorf("%d places, the code has %d", len(found["Places"]), len(places))
	}
	for _, row := range found["Places"] {
		if from, ok := places[row[1]]; !ok || row[0] != strconv.Itoa(int(from)) {
			t.Errorf("place %s is %s, the code says %d", row[1], row[0], from)
		}
	}
	if p := Append(nil, &Produce{}); len(p) != ProduceBytes {
		t.Errorf("the head of a Produce has %d bytes", len(p))
	}
	if p := Append(nil, &Records{}); len(p) != RecordsBytes {
		t.Errorf("the head of a Records has %d bytes", len(p))
	}
}

// tableReader reads a payload as a table of FORMAT.md describes it.
type tableReader struct {
	t      *testing.T
	rows   [][]string
	p      []byte
	at     int
	counts []count
}

// count is a length or count in a payload, and its limit.
type count struct {
	field           string
	at, size, limit int
}

func (r *tableReader) next(n int) []byte {
	r.t.Helper()
	if len(r.p)-r.at < n {
		r.t.Fatalf("the table goes %d bytes beyond the payload", n-(len(r.p)-r.at))
	}
	r.at += n
	return r.p[r.at-n : r.at]
}

// counted reads a length or count, whose limit is a name in the table of limits.
func (r *tableReader) counted(field string, size int, limit string) int {
	r.t.Helper()
	if limits[limit] == 0 {
		r.t.Fatalf("%s has the limit %q", field, limit)
	}
	r.counts = append(r.counts, count{field, r.at, size, int(limits[limit])})
	return int(number(r.next(size)))
}

// fields reads the fields whose names begin with prefix, and compares them with those of v.
func (r *tableReader) fields(prefix string, v reflect.Value) {
	read := 0
	for _, row := range r.rows {
		name, ok := strings.CutPrefix(row[1], prefix)
		if !ok || strings.Contains(name, ".") {
			continue
		}
		kind, limit, counted := strings.Cut(row[0], " ")
		f := v
		if v.Kind() == reflect.Struct && name != "reserved" {
			if f = v.FieldByName(name); !f.IsValid() {
				r.t.Fatalf("%s has no field %s", v.Type(), name)
			}
			read++
		}
		switch {
		case name == "reserved":
			n, _ := strconv.Atoi(kind)
			for _, b := range r.next(n) {
				if b != 0 {
					r.t.Errorf("reserved bytes before %d are not zero", r.at)
				}
			}
		case kind == "text" && counted:
			if got := string(r.next(r.counted(row[1], 2, limit))); got != f.String() {
				r.t.Errorf("%s is %q, want %q", row[1], got, f.String())
			}
		case kind == "bytes" && counted:
			if got := r.next(r.counted(row[1], 4, limit)); !bytes.Equal(got, f.Bytes()) {
				r.t.Errorf("%s is %q, want %q", row[1], got, f.Bytes())
			}
		case kind == "list" && counted:
			n := r.counted(row[1], 4, limit)
			if n != f.Len() {
				r.t.Fatalf("%s has %d elements, want %d", row[1], n, f.Len())
			}
			for i := range n {
				r.fields(row[1]+".", f.Index(i))
			}
		case strings.HasSuffix(row[0], " or none"):
			size, _ := strconv.Atoi(kind)
			if r.at == len(r.p) {
				size = 0
			}
			r.constant(row[1], r.next(size), f)
		default:
			size, err := strconv.Atoi(kind)
			if err != nil {
				r.t.Fatal(err)
			}
			r.constant(row[1], r.next(size), f)
		}
	}
	if v.Kind() != reflect.Struct {
		return
	}
	own := slices.DeleteFunc(reflect.VisibleFields(v.Type()), func(f reflect.StructField) bool { return f.Anonymous })
	if read != len(own) {
		r.t.Errorf("%d fields of %s in the table, it has %d", read, v.Type(), len(own))
	}
}

// number reads up to eight bytes.
func number(p []byte) uint64 {
	var wide [8]byte
	copy(wide[:], p)
	return binary.LittleEndian.Uint64(wide[:])
}

// constant compares the bytes of a field of constant size with its value.
func (r *tableReader) constant(name string, p []byte, f reflect.Value) {
	if id, ok := f.Interface().(uuid.UUID); ok {
		if string(id[:]) != string(p) {
			r.t.Errorf("%s is % x, want %v", name, p, id)
		}
		return
	}
	got, want := number(p), uint64(0)
	switch {
	case f.Kind() == reflect.Bool && f.Bool():
		want = 1
	case f.Kind() == reflect.Bool:
	case f.CanInt():
		want = uint64(f.Int())
	default:
		want = f.Uint()
	}
	if got != want {
		r.t.Errorf("%s is %d, want %d", name, got, want)
	}
}

// Each golden frame is what the code writes, and reads by the tables of FORMAT.md as by the code. A text or list may be
// as long as its limit says, and not longer; a longer one than its bytes is refused.
func TestFormatTables(t *testing.T) {
	found, seen := formattest.Tables(t), map[netproto.Type]bool{}
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			frame := formattest.Golden(t, filepath.Join("testdata", s.name+".hex"), s.frame(), *update)
			h, err := netproto.ParseHeader(frame)
			if err != nil {
				t.Fatal(err)
			}
			if h.Status == netproto.StatusOK && reflect.TypeOf(s.m) != reflect.TypeOf(types[h.Type].m) {
				t.Errorf("type %d with a %T", h.Type, s.m)
			}
			seen[h.Type] = true
			r := tableReader{t: t, p: frame[netproto.HeaderBytes : len(frame)-len(s.batches)]}
			r.rows = found[reflect.TypeOf(s.m).Elem().Name()]
			if r.fields("", reflect.ValueOf(s.m).Elem()); r.at != len(r.p) {
				t.Errorf("the table ends at %d of %d bytes", r.at, len(r.p))
			}
			for _, c := range r.counts {
				checkLimit(t, s.m, r.p, c)
			}
		})
	}
	for typ := range types {
		if !seen[typ] {
			t.Errorf("no golden frame of type %d", typ)
		}
	}
}

// checkLimit sets a length or count in p. Enough bytes follow for any of them to be read.
func checkLimit(t *testing.T, m Payload, p []byte, c count) {
	p = append(append([]byte{}, p...), make([]byte, 1<<17)...)
	lie := func(n int) {
		var wide [8]byte
		binary.LittleEndian.PutUint64(wide[:], uint64(n))
		copy(p[c.at:c.at+c.size], wide[:])
	}
	lie(c.limit)
	if err := Decode(p[:c.at+c.size], fresh(m)); !errors.Is(err, ErrInvalid) {
		t.Errorf("%s of %d without its bytes: %v", c.field, c.limit, err)
	}
	lie(c.limit + 1)
	if err := Decode(p, fresh(m)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), strconv.Itoa(c.limit)) {
		t.Errorf("%s of %d, one more than allowed: %v", c.field, c.limit+1, err)
	}
}
