package api

import (
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/server/audit"
)

// Which partitions nobody serves is known only if all nodes say what they serve. A node of an older version answers
// with the channels alone.
func TestUnserved(t *testing.T) {
	for _, x := range []struct {
		count   int
		answers []string
		want    []int
	}{
		{3, []string{`{"channels":[],"served_partitions":[]}`}, []int{0, 1, 2}},
		{3, []string{`{"channels":[],"served_partitions":[2]}`, `{"channels":[],"served_partitions":[0]}`}, []int{1}},
		{2, []string{`{"channels":[],"served_partitions":[1,0]}`, `{"channels":[],"served_partitions":[0]}`}, []int{}},
		{2, []string{`{"channels":[],"served_partitions":[7]}`}, []int{0, 1}},
		{2, []string{`{"channels":[],"served_partitions":[0]}`, `[{"name":"c"}]`}, []int{}},
		{2, nil, []int{0, 1}},
	} {
		served := []int{}
		for _, text := range x.answers {
			var here channelsHere
			if err := decodeChannels([]byte(text), &here); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(text, "name") && (len(here.Channels) != 1 || here.Channels[0].Name != "c") {
				t.Errorf("the channels of %s are read as %+v", text, here.Channels)
			}
			served = AllServed(served, here.Served)
		}
		if got := Unserved(x.count, served); !slices.Equal(got, x.want) {
			t.Errorf("%q: nobody serves %v, want %v", x.answers, got, x.want)
		}
	}
}

// If one node does not say since when it knows everything, nobody knows that of all.
func TestAllSince(t *testing.T) {
	now := time.Now()
	all := []NodeKnown{{Node: "a", Known: audit.Known{Since: now, StrangersSince: now.Add(time.Second)}}}
	if since := allSince(all); !since.Equal(now.Add(time.Second)) {
		t.Errorf("all is known since %v, want %v", since, now.Add(time.Second))
	}
	if since := allSince(append(all, NodeKnown{Node: "old"})); !since.IsZero() {
		t.Errorf("with a node that does not say it, all is known since %v", since)
	}
}
