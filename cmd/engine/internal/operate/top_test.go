package operate

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
)

// O19: the figures of top, from two looks at all topics.
func TestTopOf(t *testing.T) {
	before := []cli.TopicNumbers{
		{Name: "a", MessageCount: 100, Channels: []cli.ChannelNumbers{
			{Name: "c", Depth: 50, MessageCount: 100, RequeueCount: 2},
		}},
		{Name: "gone", MessageCount: 5},
		{Name: "moved", MessageCount: 1000, Channels: []cli.ChannelNumbers{{Name: "c", Depth: 9, MessageCount: 1000}}},
	}
	after := []cli.TopicNumbers{
		{Name: "a", MessageCount: 140, Channels: []cli.ChannelNumbers{
			{Name: "c", Depth: 40, MessageCount: 140, RequeueCount: 4, TimeoutCount: 6},
			{Name: "new", Depth: 40, MessageCount: 40, Paused: true},
		}},
		{Name: "moved", MessageCount: 10, Channels: []cli.ChannelNumbers{{Name: "c", Depth: 9, MessageCount: 10}}},
		{Name: "none", MessageCount: 8, Depth: 8},
	}
	look := TopOf(before, after, 2*time.Second, 10)
	want := []topRow{
		{
			Topic: "a", Channel: "c", Published: 20, Entered: 20, Confirmed: 25, Requeued: 1, TimedOut: 3, Depth: 40,
			LagSeconds: 1.6, State: "ok",
		},
		{Topic: "a", Channel: "new", Published: 20, Entered: 20, Depth: 40, LagSeconds: -1, State: "paused", Paused: true},
		{Topic: "none", Published: 4, Depth: 8, State: "ok"},
		{Topic: "moved", Channel: "c", Depth: 9, LagSeconds: -1, State: "ok"},
	}
	if len(look.Rows) != len(want) || look.Published != 24 || look.Depth != 97 || look.RowCount != 4 {
		t.Fatalf("%+v", look)
	}
	for i := range want {
		if look.Rows[i] != want[i] {
			t.Errorf("row %d is\n%+v, want\n%+v", i, look.Rows[i], want[i])
		}
	}
	if look = TopOf(before, after, time.Second, 1); len(look.Rows) != 1 || look.RowCount != 4 {
		t.Errorf("not bounded: %+v", look)
	}
}

// Partitions that nobody serves make no rates, neither when they vanish nor when they come back, and no state "ok".
func TestTopOfUnserved(t *testing.T) {
	whole := []cli.TopicNumbers{{
		Name: "a", MessageCount: 100, Partitions: 2, Served: []int{1, 0},
		Channels: []cli.ChannelNumbers{{Name: "c", Depth: 90, MessageCount: 100, Paused: true}},
	}}
	half := []cli.TopicNumbers{{
		Name: "a", MessageCount: 40, Partitions: 2, Served: []int{1},
		Channels: []cli.ChannelNumbers{{Name: "c", Depth: 30, MessageCount: 40, Paused: true}},
	}}
	none := []cli.TopicNumbers{{Name: "a", Partitions: 2, Served: []int{}}}
	for _, tc := range []struct {
		before, after []cli.TopicNumbers
		want          topRow
	}{
		{whole, half, topRow{Topic: "a", Channel: "c", Depth: 30, Paused: true, LagSeconds: -1, State: "partly served"}},
		{half, whole, topRow{Topic: "a", Channel: "c", Depth: 90, Paused: true, LagSeconds: -1, State: "paused"}},
		{half, none, topRow{Topic: "a", State: "not served"}},
	} {
		if look := TopOf(tc.before, tc.after, time.Second, 10); len(look.Rows) != 1 || look.Rows[0] != tc.want {
			t.Errorf("%+v, want %+v", look.Rows, tc.want)
		}
	}
	var out strings.Builder
	must(t, PrintChannels(&out, half))
	if got := rows(out.String()); len(got) != 2 || !strings.HasSuffix(got[1], "partly served") {
		t.Errorf("the list of channels is %q", got)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rows returns the lines of a table, with each gap between columns reduced to one space.
func rows(table string) []string {
	gaps := regexp.MustCompile(` {2,}`)
	out := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	for i := range out {
		out[i] = strings.TrimRight(gaps.ReplaceAllString(out[i], "  "), " ")
	}
	return out
}
