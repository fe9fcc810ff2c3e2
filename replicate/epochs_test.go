package replicate

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"penstock/segment"
)

// table makes epochs from pairs of epoch and position; each batch has 100 bytes.
func table(pairs ...uint64) []EpochStart {
	var out []EpochStart
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, EpochStart{
			Epoch: segment.Epoch(pairs[i]), Position: segment.Position(pairs[i+1]), Offset: segment.Offset(100 * pairs[i+1]),
		})
	}
	return out
}

// B73 P2
func TestEpochTableCommon(t *testing.T) {
	for _, c := range []struct {
		name     string
		mine     []EpochStart
		end      segment.Position
		other    []EpochStart
		otherEnd segment.Position
		want     segment.Position
		err      error
	}{
		{"equal", table(1, 0), 9, table(1, 0), 9, 9, nil},
		{"the other is behind", table(1, 0), 9, table(1, 0), 4, 4, nil},
		{"the other is behind by epochs", table(1, 0, 2, 5, 3, 7), 9, table(1, 0), 4, 4, nil},
		{"the other is ahead in the same epoch", table(1, 0), 4, table(1, 0), 9, 4, nil},
		{"the other has more of an old epoch", table(1, 0, 2, 5), 9, table(1, 0), 8, 5, nil},
		{"the other has an epoch that was lost", table(1, 0, 3, 5), 9, table(1, 0, 2, 5), 8, 5, nil},
		{"and had less of the epoch before", table(1, 0, 3, 7), 9, table(1, 0, 2, 5), 8, 5, nil},
		{"A, B, A, B", table(1, 0, 2, 2, 4, 4), 6, table(1, 0, 3, 3), 5, 2, nil},
		{
			"KIP-279: both have epochs that the other lacks", table(1, 0, 2, 10, 5, 20), 30, table(1, 0, 3, 12, 4, 18), 25, 10,
			nil,
		},
		{"trimmed beginnings", table(3, 30), 40, table(1, 0, 2, 10, 3, 30), 35, 35, nil},
		{"nothing", table(2, 0), 5, table(1, 0), 5, 0, ErrNoCommon},
		{"an empty log", table(1, 0), 5, nil, 0, 0, ErrNoCommon},
		{
			"one epoch at one position and two offsets",
			[]EpochStart{{1, 0, 0}, {2, 5, 500}},
			9,
			[]EpochStart{{1, 0, 0}, {2, 5, 400}},
			9, 0, ErrEpochConflict,
		},
		{"one epoch at two places", table(1, 0, 2, 5), 9, table(1, 0, 2, 6), 9, 0, ErrEpochConflict},
	} {
		tab := EpochTable{entries: c.mine}
		got, err := tab.Common(c.end, c.other, c.otherEnd)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v; want %d, %v", c.name, got, err, c.want, c.err)
		}
	}
}

// history is a log as the list of its batches' epochs. As in a real log, equal (epoch, position) means an equal batch.
type history []segment.Epoch

func (h history) table() (t EpochTable) {
	for p, e := range h {
		t.Note(EpochStart{Epoch: e, Position: segment.Position(p), Offset: segment.Offset(100 * p)})
	}
	return t
}

// Logs that grow like real logs (a leader appends in its own new epoch, others copy a prefix of its log) are compared
// by their tables and batch by batch.
func TestEpochTableCommonAgainstBatches(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		logs := make([]history, 3)
		for epoch := segment.Epoch(1); epoch < 12; epoch++ {
			leader := rng.IntN(3)
			for range 1 + rng.IntN(4) {
				logs[leader] = append(logs[leader], epoch)
			}
			if f := rng.IntN(3); f != leader { // it cuts to the common prefix and copies some batches
				common := sharedPrefix(logs[f], logs[leader])
				n := common + rng.IntN(len(logs[leader])-common+1)
				logs[f] = append(history(nil), logs[leader][:n]...)
			}
			for a := range 3 {
				for b := range 3 {
					ta, tb := logs[a].table(), logs[b].table()
					got, err := ta.Common(segment.Position(len(logs[a])), tb.Entries(), segment.Position(len(logs[b])))
					want := sharedPrefix(logs[a], logs[b])
					if err != nil && (want != 0 || !errors.Is(err, ErrNoCommon)) || err == nil && int(got) != want {
						t.Fatalf("seed %d: %v and %v: %d, %v; want %d", seed, logs[a], logs[b], got, err, want)
					}
				}
			}
		}
	}
}

func sharedPrefix(a, b history) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestEpochTableChanges(t *testing.T) {
	var tab EpochTable
	for _, e := range table(1, 0, 1, 1, 2, 3, 2, 4, 5, 7) {
		tab.Note(e)
	}
	want := func(what string, entries []EpochStart) {
		t.Helper()
		if !bytes.Equal(AppendEpochs(nil, tab.Entries()), AppendEpochs(nil, entries)) {
			t.Errorf("%s: %v, want %v", what, tab.Entries(), entries)
		}
	}
	want("noted", table(1, 0, 2, 3, 5, 7))
	for p, e := range map[segment.Position]segment.Epoch{0: 1, 2: 1, 3: 2, 6: 2, 7: 5, 100: 5} {
		if got, ok := tab.At(p); !ok || got != e {
			t.Errorf("at %d: epoch %d, %v", p, got, ok)
		}
	}
	if n := len(tab.before(7)); n != 2 {
		t.Errorf("%d epochs begin before 7", n)
	}
	tab.Truncate(8)
	want("cut behind", table(1, 0, 2, 3, 5, 7))
	tab.Truncate(7)
	want("cut where an epoch begins", table(1, 0, 2, 3))
	tab.Trim(3)
	want("trimmed to where an epoch ends", table(1, 0, 2, 3))
	tab.Trim(4)
	want("trimmed", table(2, 3))
	if _, ok := tab.At(2); ok {
		t.Error("an epoch is known for what was forgotten")
	}
	tab.Truncate(0)
	want("cut to nothing", nil)
	if tab.Last() != 0 {
		t.Error("an empty table has a last epoch")
	}
	for e := uint64(1); e <= MaxEpochCount+5; e++ {
		tab.Note(table(e, e)[0])
	}
	if n := len(tab.Entries()); n != MaxEpochCount || tab.Entries()[0].Epoch != 6 {
		t.Errorf("%d entries, the first is %v", n, tab.Entries()[0])
	}
	for _, bad := range [][]EpochStart{table(3, 5000), table(9999, 3)} {
		mustPanic(t, func() { tab.Note(bad[0]) })
	}
	mustPanic(t, func() { tab.Reset(table(2, 1, 1, 2)) })
}

func mustPanic(t *testing.T, fn func()) {
	t.Helper()
	defer func() {
		if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "BUG: ") {
			t.Errorf("panicked with %q", text)
		}
	}()
	fn()
}

func TestEpochsCodec(t *testing.T) {
	const golden = "0100000002000000" + "010000000000000000000000000000000000000000000000" +
		"030000000000000005000000000000002c01000000000000"
	entries := []EpochStart{{1, 0, 0}, {3, 5, 300}}
	p := AppendEpochs([]byte("x"), entries)
	if hex.EncodeToString(p[1:]) != golden {
		t.Errorf("encoded: %x", p[1:])
	}
	got, rest, err := DecodeEpochs(nil, append(p[1:], 'y'))
	if err != nil || string(rest) != "y" || len(got) != 2 || got[0] != entries[0] || got[1] != entries[1] {
		t.Errorf("decoded: %v, %q, %v", got, rest, err)
	}
	for at := range len(p) - 1 {
		if _, _, err := DecodeEpochs(nil, p[1:1+at]); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", at, err)
		}
	}
	for name, bad := range map[string][]byte{
		"version":        {2, 0, 0, 0, 0, 0, 0, 0},
		"reserved":       {1, 0, 1, 0, 0, 0, 0, 0},
		"too many":       append([]byte{1, 0, 0, 0, 1, 4, 0, 0}, make([]byte, 2000*epochEntryBytes)...),
		"epoch 0":        AppendEpochs(nil, table(0, 5)),
		"order":          AppendEpochs(nil, table(2, 5, 1, 6)),
		"same place":     AppendEpochs(nil, table(1, 5, 2, 5)),
		"negative place": AppendEpochs(nil, []EpochStart{{1, 1, -1}}),
	} {
		if _, _, err := DecodeEpochs(nil, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(AppendEpochs(nil, make([]EpochStart, MaxEpochCount))); n != MaxEpochTableBytes {
		t.Errorf("the largest table takes %d bytes", n)
	}
}

// Any bytes are either refused, or are a usable table that encodes to the same bytes.
func FuzzDecodeEpochs(f *testing.F) {
	f.Add(AppendEpochs(nil, nil))
	f.Add(AppendEpochs(nil, table(1, 0, 2, 5, 9, 100)))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, p []byte) {
		entries, rest, err := DecodeEpochs(nil, p)
		if err != nil {
			return
		}
		if again := AppendEpochs(nil, entries); !bytes.Equal(again, p[:len(p)-len(rest)]) {
			t.Fatalf("%x encodes to %x", p, again)
		}
		var tab EpochTable
		tab.Reset(entries)
		end := segment.Position(0)
		if n := len(entries); n > 0 {
			end = entries[n-1].Position + 1
		}
		if at, err := tab.Common(end, entries, end); len(entries) > 0 && (err != nil || at != end) {
			t.Fatalf("a table shares %d, %v with itself", at, err)
		}
	})
}

// FORMAT.md and the constants agree.
func TestFormatTables(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]int{
		"tableVersion": {offTableVersion, 1}, "tableReserved": {offTableReserved, 3}, "tableCount": {offTableCount, 4},
		"entryEpoch": {offEntryEpoch, 8}, "entryPosition": {offEntryPosition, 8}, "entryOffset": {offEntryOffset, 8},
	}
	for _, m := range regexp.MustCompile(`\| (\d+) \| (\d+) \| (\w+) \|`).FindAllStringSubmatch(string(text), -1) {
		offset, _ := strconv.Atoi(m[1])
		size, _ := strconv.Atoi(m[2])
		if w, ok := want[m[3]]; !ok || w != [2]int{offset, size} {
			t.Errorf("%s: the table says offset %d size %d, the code %v", m[3], offset, size, w)
		}
		delete(want, m[3])
	}
	for name := range want {
		t.Errorf("%s is not in FORMAT.md", name)
	}
	if !strings.Contains(string(text), "at most "+strconv.Itoa(MaxEpochCount)) {
		t.Error("FORMAT.md does not know MaxEpochCount")
	}
}

// recent agrees with a list of all batches, whatever is asked and forgotten.
func TestRecent(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		maxCount := 1 + rng.IntN(100)
		r := newRecent(5, 500, maxCount)
		ends := map[segment.Position]segment.Offset{5: 500} // where the batch at a position begins
		needed := segment.Position(5)
		for range 300 {
			p := r.next
			b := Batch{Position: p, Offset: ends[p], Bytes: 1 + rng.IntN(50), Epoch: 3, CRC: uint32(p)}
			ends[p+1] = b.End()
			r.add(&b, needed)
			if int(r.next-needed) <= maxCount && r.first > needed {
				t.Fatalf("seed %d: batch %d is needed and forgotten: %d", seed, needed, r.first)
			}
			if int(r.next-r.first) > max(2*maxCount, minRecentCount) {
				t.Fatalf("seed %d: %d are remembered", seed, r.next-r.first)
			}
			for q := r.first; q <= r.next; q++ {
				if r.offset(q) != ends[q] || r.holds(q) != (q < r.next) || q < r.next && r.at(q).crc != uint32(q) {
					t.Fatalf("seed %d: batch %d at %d, want %d", seed, q, r.offset(q), ends[q])
				}
			}
			from := r.first + segment.Position(rng.IntN(int(r.next-r.first)))
			limit, count := int64(rng.IntN(200)), 1+rng.IntN(10)
			until := r.reach(from, limit, count)
			if until <= from || until > r.next || int(until-from) > count ||
				until > from+1 && int64(ends[until]-ends[from]) > limit {
				t.Fatalf("seed %d: reach %d from %d", seed, until, from)
			}
			if until < r.next && int(until-from) < count && int64(ends[until+1]-ends[from]) <= limit {
				t.Fatalf("seed %d: more would fit than [%d,%d)", seed, from, until)
			}
			needed = max(needed, r.next-segment.Position(rng.IntN(int(r.next-needed)+1)))
		}
	}
	r := newRecent(0, 0, 4)
	mustPanic(t, func() { r.add(&Batch{Position: 1}, 0) })
}
