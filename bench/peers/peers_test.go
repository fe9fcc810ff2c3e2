package main

import (
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestSpan(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   span
	}{
		{nil, span{}},
		{[]float64{3}, span{3, 3, 3}},
		{[]float64{9, 1, 4}, span{4, 1, 9}},
		{[]float64{4, 1, 2, 9}, span{3, 1, 9}},
	} {
		if got := spanOf(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}

// Neighbours in time are compared with each other: every second round goes backwards.
func TestTurnsAlternate(t *testing.T) {
	var got []string
	for _, turn := range turns([]peer{{Name: "a"}, {Name: "b"}, {Name: "c"}}, 3) {
		got = append(got, turn.Peer.Name)
	}
	if want := strings.Split("abccbaabc", ""); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParse(t *testing.T) {
	o, err := parse(strings.Fields("-engine old=/a -engine new=/b -peers new,redis-* -work pub1 -seconds 0.5"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range o.peers {
		names = append(names, p.Name+"/"+p.Base)
	}
	if want := []string{"new/old", "redis-always/old", "redis-everysec/old"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if len(o.works) != 1 || o.works[0].Name != "pub1" || o.seconds != 500*time.Millisecond {
		t.Errorf("%+v", o)
	}
	for _, wrong := range []string{
		"-peers nobody", "-peers [", "-work x", "-rounds 0", "-seconds 0", "-messages 0", "-append", "more",
		"-engine =x", "-engine a*=x", "-nothing",
	} {
		if _, err := parse(strings.Fields(wrong), io.Discard); err == nil {
			t.Errorf("%s was taken", wrong)
		}
	}
}

func TestParseStat(t *testing.T) {
	const line = "12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 1 1 20 0 8 0\n"
	if got, err := parseStat(line); err != nil || got != 2*time.Second {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseStat("12 (x) S 1"); err == nil {
		t.Error("a short line was taken")
	}
	before := ownCPU()
	got, err := cpuOf([]int{os.Getpid()})
	if after := ownCPU(); err != nil || got < before-2*tick || got > after+2*tick {
		t.Errorf("%v, %v; getrusage says %v to %v", got, err, before, after)
	}
}

func TestSums(t *testing.T) {
	dir := t.TempDir()
	list := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n"
	if checkSums(dir, list) == nil {
		t.Error("a file that is missing was not noticed")
	}
	for content, right := range map[string]bool{"abc": true, "abd": false} {
		if err := os.WriteFile(dir+"/a", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkSums(dir, list); (err == nil) != right {
			t.Errorf("%s: %v", content, err)
		}
		if checkSums(dir, "") == nil {
			t.Error("a file that is not listed was not noticed")
		}
	}
}

func TestConfigs(t *testing.T) {
	text := natsConfig("n2", "/d", "always", 7, []int{8, 9, 10}, 1)
	for _, want := range []string{"sync_interval: always", `listen: "127.0.0.1:9"`, `"nats://127.0.0.1:10"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	text = natsConfig("n1", "/d", "", 7, []int{8}, 0)
	if strings.Contains(text, "cluster") || strings.Contains(text, "sync") {
		t.Error(text)
	}
	text = kafkaConfig("/d", []int{1, 2, 3, 4}, 1)
	for _, want := range []string{
		"node.id=2\n", "voters=1@127.0.0.1:3,2@127.0.0.1:4\n", "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:4\n",
		"offsets.topic.replication.factor=2\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 950: "950", 1234: "1.23k", 41_230: "41.2k", 999_900: "1.00 M", 2.5e6: "2.50 M",
	} {
		if got := count(value); got != want {
			t.Errorf("count of %v: %s, want %s", value, got, want)
		}
	}
	for value, want := range map[float64]string{71.4: "71 µs", 1240: "1.24 ms", 12e6: "12.0 s"} {
		if got := latency(value); got != want {
			t.Errorf("latency of %v: %s, want %s", value, got, want)
		}
	}
}

// sampled is a report of two calls with what a table has to cope with: rounds that lack a base, a failed work, a server
// that could not be had.
func sampled() *report {
	one := func(call, round int, peer, work string, rate, p50 float64) done {
		return done{Call: call, Round: round, Peer: peer, Work: work, sample: sample{
			Messages: int64(rate), Seconds: 1, Rate: rate, P50: p50, P99: 4 * p50, ServerCPU: 10, ClientCPU: 0.5,
		}}
	}
	at := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	return &report{
		Peers: []peer{
			{Name: "penstock", Nodes: 1, Base: "penstock", OK: "flushed"},
			{Name: "other", Nodes: 1, Base: "penstock", OK: "in memory"},
			{Name: "gone", Nodes: 1, Base: "penstock", OK: "flushed"},
			{Name: "penstock-3", Nodes: 3, Base: "penstock-3", OK: "flushed"},
		},
		Works: []work{{Name: "pub", Title: "publish"}, {Name: "e2e", Title: "steady", Paced: true}},
		Calls: []call{
			{
				Start: at, Processors: "2 × CPU", Kernel: "Linux 6", Seconds: 2, Messages: 1000,
				Commits:  []commit{{100, 200}, {110, 400}},
				Versions: map[string]string{"penstock": "1", "other": "2", "penstock-3": "1"},
				Missing:  map[string]string{"gone": "no | package"},
			},
			{
				Start: at, Processors: "2 × CPU", Kernel: "Linux 6", Seconds: 2, Messages: 1000,
				Commits: []commit{{90, 300}, {100, 200}},
			},
		},
		Runs: []done{
			one(0, 0, "penstock", "pub", 30_000, 100), one(0, 0, "other", "pub", 20_000, 200),
			one(0, 1, "other", "pub", 10_000, 200), one(0, 1, "penstock", "pub", 40_000, 100),
			one(1, 0, "penstock", "pub", 10_000, 100), one(1, 0, "other", "pub", 20_000, 200),
			one(1, 1, "other", "pub", 999, 200),
			one(0, 0, "penstock", "e2e", 10_000, 100), one(0, 0, "other", "e2e", 10_000, 300),
			{Peer: "penstock-3", Work: "pub", Error: "it | ended"},
		},
	}
}

// A ratio is taken within a round of a call, and says how much better the base is.
func TestRatios(t *testing.T) {
	r := sampled()
	if got, want := r.ratios(&r.Peers[1], &r.Works[0], rate), []float64{1.5, 4, 0.5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := r.ratios(&r.Peers[1], &r.Works[1], p50), []float64{3}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := sampled().document(&b); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/comparison.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(strings.TrimPrefix(b.String(), intro)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tail, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := intro + string(tail)
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
}

// A second call adds to the results of the first.
func TestAppend(t *testing.T) {
	dir := t.TempDir()
	r, err := load(dir + "/comparison.json")
	if err != nil || len(r.Runs) != 0 {
		t.Fatal(r, err)
	}
	if err := sampled().save(dir); err != nil {
		t.Fatal(err)
	}
	if r, err = load(dir + "/comparison.json"); err != nil {
		t.Fatal(err)
	}
	known := []peer{{Name: "penstock"}, {Name: "new"}, {Name: "other"}, {Name: "gone"}, {Name: "penstock-3"}}
	r.join([]peer{{Name: "other"}, {Name: "new"}}, known, []work{{Name: "pub"}, {Name: "pub1"}})
	if len(r.Peers) != 5 || r.Peers[1].Name != "new" || len(r.Works) != 3 {
		t.Errorf("%+v", r)
	}
	if len(r.Runs) != len(sampled().Runs) || r.Runs[0].Rate != 30_000 {
		t.Errorf("%+v", r)
	}
}
