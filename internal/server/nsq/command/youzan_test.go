package command

import (
	"fmt"
	"slices"
	"testing"

	"penstock/tests/support/nsqtest"
)

// However the bytes of youzan's commands are divided into reads, they parse to the same commands.
func TestYouzanCommandsInPieces(t *testing.T) {
	in := "PUB_EXT t 3\n" + nsqtest.Sized(nsqtest.WithExt(`{"a":"b"}`, "x")) +
		"MPUB_TRACE t\n" + nsqtest.Sized(nsqtest.BatchBody(nsqtest.U64(1)+"y", nsqtest.U64(2)+"z")) +
		"PUB t 2\n" + nsqtest.Sized("p") + "SUB_ADVANCED t c 1 virtual_queue:5\n"
	want := []string{"PUB_EXT true 3 ", "MPUB_TRACE false 0 ", "PUB true 2 ", "SUB_ADVANCED true 1 virtual_queue:5"}
	for step := 1; step <= len(in); step++ {
		p := Parser{
			Limits:     Limits{MaxMessageBytes: 1 << 10, MaxBodyBytes: 1 << 12, MaxRdyCount: 10},
			Heartbeats: true,
		}
		var got []string
		var cmd Command
		at, end := 0, 0
		for at < len(in) {
			n, f := p.Next([]byte(in)[at:end], &cmd)
			if f != nil {
				t.Fatalf("in pieces of %d: %s", step, f.Text)
			}
			if n == 0 {
				end = min(end+step, len(in))
				continue
			}
			at += n
			got = append(got, fmt.Sprintf("%s %v %d %s", cmd.Verb, cmd.Addressed, cmd.Partition, cmd.From))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("in pieces of %d: %q", step, got)
		}
	}
}
