package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/data"
	"penstock/cmd/engine/internal/traffic"
	"penstock/internal/node/aside"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/clitest"
)

// keepAside makes a data directory of a node that has cut n messages from a copy of partition 1 of topic t, with a
// control batch between them. It returns the cut's id.
func keepAside(t *testing.T, dir string, n int) string {
	t.Helper()
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	defer disk.Close()
	must(t, disk.WriteFile("node.json", []byte("{}")))
	id := segment.Identity{Topic: uuid.UUID{7}, Partition: 1}
	log, err := segment.Open(disk, "topics/"+id.Topic.String()+"/1", id, segment.State{}, segment.Options{})
	must(t, err)
	defer log.Close()
	arena, err := aio.NewArena(1<<20, 1)
	must(t, err)
	buf := arena.Get()
	free, st := buf.Bytes(), segment.State{}
	add := func(p []byte) {
		batch.Stamp(p, st.Next, st.NextID, 5, time.Now().UnixNano(), st.LastCRC)
		var h segment.Header
		must(t, h.Decode(p))
		segment.DefaultSizes.Place(&st, len(p))
		k := copy(free, p)
		log.Append(&segment.Slice{
			Buf: buf, Data: free[:k:k], Position: h.Position, FirstID: h.FirstID, Count: h.Count, Control: h.Control(),
			Appended: h.Appended, Offset: st.End, Segment: st.Segment, SegmentBase: st.SegmentBase,
			SegmentCapacity: st.SegmentCapacity, FileSeq: 1,
		})
		free = free[k:]
		st.Advance(&h)
	}
	for i := 0; i < n; i += 2 {
		var b batch.Builder
		b.Reset(batch.CodecS2)
		for k := i; k < min(i+2, n); k++ {
			must(t, b.Add(&segment.Record{
				Body: fmt.Appendf(nil, "message %d", k),
				Headers: []segment.KV{
					{Key: []byte("color"), Value: []byte("blue")}, {Key: []byte("penstock-made"), Value: []byte("x")},
				},
			}))
		}
		p, err := b.Seal(time.Now().UnixNano())
		must(t, err)
		add(p)
		control := make([]byte, segment.HeaderBytes+8)
		h := segment.Header{
			Flags: segment.FlagControl, BodyBytes: 8, BodyCRC: batch.Checksum(control[segment.HeaderBytes:]),
		}
		h.Encode(control)
		add(control)
	}
	keep := aside.New(disk, slog.New(slog.DiscardHandler), time.Now, aside.DefaultLimits)
	e, err := keep.Keep(log, aside.Cut{
		TopicID: id.Topic, Topic: "t", Partition: 1, Reason: aside.ReasonCut, Node: "n1", Leader: 2, LeaderEpoch: 6,
		Until: st.Next, NextID: st.NextID,
	}, 0, st.End)
	must(t, err)
	buf.Release()
	return e.Name
}

func lines(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "message %d\n", i)
	}
	return out.String()
}

// What a cut took is listed, printed and removed from the data directory.
func TestAsideListShowRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := keepAside(t, dir, 9)
	at := []string{"--data-path", dir}
	run := func(args ...string) outcome { return execute(t, append(append([]string{"aside"}, args...), at...)...) }
	if got := run("list").well(t); !strings.Contains(got, id) || !strings.Contains(got, " t ") ||
		!strings.Contains(got, "0 to 9") || !strings.Contains(got, "2, epoch 6") {
		t.Errorf("it lists %s", got)
	}
	var all []data.AsideCut
	must(t, json.Unmarshal([]byte(run("list", "--json").well(t)), &all))
	if len(all) != 1 || all[0].ID != id || all[0].Messages != 9 || all[0].Topic != "t" || all[0].Partition != 1 {
		t.Errorf("it lists %+v", all)
	}
	if got := run("show", id).well(t); got != lines(9) {
		t.Errorf("it shows %q", got)
	}
	var m traffic.ReadMessage
	must(t, json.Unmarshal([]byte(run("show", id, "--count", "1", "--format", "json").well(t)), &m))
	if m.Partition != 1 || m.Number != 0 || *m.Body != "message 0" || m.Headers[0].Name != "color" {
		t.Errorf("it shows %+v", m)
	}
	run("show", id+"0").check(t, cli.ExitOther, "there is no cut")
	execute(t, "aside", "list").check(t, cli.ExitUsage, "--data-path")
	execute(t, "aside", "list", "--data-path", t.TempDir()).check(t, cli.ExitData, "is not a data directory")

	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	must(t, err)
	run("list").well(t)
	run("remove", id).check(t, cli.ExitData, "a node is running")
	must(t, disk.Close())
	run("remove", id).well(t)
	if got := run("list").well(t); !strings.Contains(got, "no cut") {
		t.Errorf("after remove it lists %s", got)
	}
}

// What a cut took is published in its order, to the partition where it was. A second run adds nothing, and after a kill
// the next run goes on.
func TestAsidePublish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := keepAside(t, dir, 2001)
	p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
	execute(t, "topic", "create", "t", "--partitions", "2", "--http-address", p.http).well(t)
	at := []string{"--nodes", p.native()}
	args := append([]string{"aside", "publish", id, "--data-path", dir}, at...)
	feed(t, "", args...).check(t, cli.ExitUsage, "say --yes")
	args = append(args, "--yes")

	killed := exec.Command(binary(t), args...)
	must(t, killed.Start())
	seen := append([]string{"read", "t", "--partition", "1", "--follow", "--count", "1"}, at...)
	for feed(t, "", seen...).code != 0 { // it waits for the first message
	}
	must(t, killed.Process.Kill())
	_ = killed.Wait()

	for round := range 2 {
		var report traffic.PubReport
		must(t, json.Unmarshal([]byte(feed(t, "", append(args, "--json")...).well(t)), &report))
		if report.Published+report.Skipped != 2001 || report.Skipped == 0 || report.Topic != "t" ||
			round == 1 && report.Published != 0 {
			t.Errorf("round %d: %+v", round, report)
		}
		if got := feed(t, "", append([]string{"read", "t", "--partition", "1"}, at...)...).well(t); got != lines(2001) {
			t.Errorf("round %d: the topic has %d bytes, want %d", round, len(got), len(lines(2001)))
		}
	}
	if got := feed(t, "", args...).well(t); !strings.Contains(got, "2001 messages had been published before") {
		t.Errorf("it says %s", got)
	}
	other := append(args, "--topic", "u", "--origin")
	feed(t, "", other...).well(t)
	text := feed(t, "", append([]string{"read", "u", "--format", "json", "--count", "2"}, at...)...).well(t)
	var m traffic.ReadMessage
	must(t, json.NewDecoder(strings.NewReader(text)).Decode(&m))
	if len(m.Headers) != 3 || m.Headers[0].Name != "color" || m.Headers[1].Name != data.OriginID ||
		*m.Headers[1].Value != batch.MakeID(1, 0).String() {
		t.Errorf("%+v", m)
	}
}

// On a terminal, aside publish asks.
func TestAsidePublishAsks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id := keepAside(t, dir, 3)
	p := startNode(t, t.TempDir(), "--native-address", "127.0.0.1:0")
	for answer, code := range map[string]int{"publish\n": 0, "yes\n": cli.ExitOther} {
		near, far := clitest.OpenTerminal(t)
		cmd := exec.CommandContext(t.Context(), binary(t), "aside", "publish", id, "--data-path", dir, "--nodes", p.native())
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = far, &stdout, &stderr
		must(t, cmd.Start())
		_, err := io.WriteString(near, answer)
		must(t, err)
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(stderr.String(), "3 messages, stored from") ||
			strings.Contains(stdout.String(), "published 3 messages") != (code == 0) {
			t.Errorf("answered %q: exit code %d:\n%s%s", answer, got, &stderr, &stdout)
		}
	}
}
