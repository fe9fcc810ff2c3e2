//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/client"
	"penstock/tests/cluster/harness"
)

const (
	// doorsEnv asks for the door tests with much data, too.
	doorsEnv = "TEST_DOORS"
	// doorPatience is how long nodes may take to do what they should. Elections and leases take a few seconds.
	doorPatience = 20 * time.Second
	// electionPatience is longer than the lease of a dead node and an election.
	electionPatience = 8 * time.Second
	// rowPatience is longer than a node that stores messages leaves its row behind its commit log.
	rowPatience = 7 * time.Second
	// smallBody and smallCount fill the first file of a small commit log, and a part of the second one.
	smallBody  = 2 << 10
	smallCount = 700
	// muchBody and muchCount are 200 MiB.
	muchBody  = 32 << 10
	muchCount = 6400
)

// smallLog makes files of the commit log that few messages fill, and keeps all of it: nothing is in segments.
var smallLog = []string{
	"--max-batch-bytes", "512KiB", "--max-message-bytes", "256KiB", "--commit-file-bytes", "1MiB",
}

// muchLog lets the commit log end soon behind what is in segments.
var muchLog = []string{
	"--commit-file-bytes", "16MiB", "--commit-live-bytes", "32MiB", "--max-segment-bytes", "8MiB",
}

// volumes of data for a door: see smallLog and muchLog.
type volumeOfData struct {
	name        string
	serve       []string
	count, body int
}

// dataVolumes are those that this run asks for.
func dataVolumes() []volumeOfData {
	all := []volumeOfData{{"small", smallLog, smallCount, smallBody}}
	if os.Getenv(doorsEnv) == "full" && !testing.Short() {
		all = append(all, volumeOfData{"much", muchLog, muchCount, muchBody})
	}
	return all
}

// door is one test of a copy that has forgotten something. It numbers all messages and knows which ones were answered
// OK; judge looks for them in the end.
type door struct {
	*testing.T
	c     *harness.Cluster
	dir   string
	topic string
	data  volumeOfData
	began time.Time

	number int // of the next message
	mu     sync.Mutex
	acked  map[int]client.ID

	forgetful []*harness.Node // whose copies may be called damaged
	whole     bool            // every message has to be readable in the end: judge accepts nothing less

	heard map[string]bool // what nodes said of their health, by "node: sentence"
	notes []string
}

func openDoor(t *testing.T, data volumeOfData) *door {
	t.Helper()
	t.Parallel()
	return &door{
		T: t, dir: t.TempDir(), topic: "door", data: data, began: time.Now(), acked: map[int]client.ID{},
		heard: map[string]bool{},
	}
}

// begins starts nodes, makes the door's topic and publishes messages.
func (d *door) begins(nodes int, settings map[string]any, messages int) {
	d.Helper()
	d.starts(nodes)
	d.create(settings)
	d.mustPublish(messages)
}

// starts starts nodes: 0 is a single one, others are dev-cluster's.
func (d *door) starts(nodes int) {
	d.Helper()
	o := harness.Options{Dir: d.dir, Nodes: nodes, Serve: slices.Clone(d.data.serve)}
	ctx := d.within(startTimeout)
	var err error
	if nodes == 0 {
		d.c, err = harness.Single(ctx, o)
	} else {
		d.c, err = harness.Dev(ctx, o)
	}
	d.try(err)
	d.Cleanup(d.end)
}

func (d *door) end() {
	if err := d.c.Close(); err != nil {
		d.Error(err)
	}
	d.Logf("DOOR %s: %s [%v]", strings.TrimPrefix(d.Name(), "TestDoor"), strings.Join(d.notes, "; "),
		time.Since(d.began).Round(100*time.Millisecond))
	if !d.Failed() || !testing.Verbose() {
		return
	}
	for _, said := range slices.Sorted(maps.Keys(d.heard)) {
		d.Log("health of " + said)
	}
	for _, n := range d.c.Nodes {
		d.Logf("---- warnings of %s\n%s", n.Name, warnings(n, 12))
	}
	d.keepLogs()
}

// keepLogs keeps the nodes' logs for whoever keeps artifacts.
func (d *door) keepLogs() {
	for _, n := range d.c.Nodes {
		if log, err := os.ReadFile(n.LogPath); err == nil {
			_ = os.WriteFile(filepath.Join(d.ArtifactDir(), n.Name+".log"), log, 0o600)
		}
	}
}

// warnings are the last lines of a node's log that are above INFO, without those of etcd.
func warnings(n *harness.Node, count int) string {
	lines := strings.Split(strings.TrimSpace(n.LogTail(256<<10)), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.Contains(l, "level=INFO") || strings.Contains(l, `msg="etcd: `)
	})
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// lastWords is the last line of a node's log.
func lastWords(n *harness.Node) string {
	lines := strings.Split(strings.TrimSpace(n.LogTail(16<<10)), "\n")
	return lines[len(lines)-1]
}

func (d *door) try(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *door) within(t time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(d.Context(), t)
	d.Cleanup(cancel)
	return ctx
}

// note is a fact for the line that the test prints in the end.
func (d *door) note(format string, args ...any) {
	d.notes = append(d.notes, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | "))
}

// fails notes what should not be, and goes on.
func (d *door) fails(format string, args ...any) {
	d.Helper()
	d.note("FAIL: "+format, args...)
	d.Errorf(format, args...)
}

// epoch is that of the partition's last leader.
func (d *door) epoch() uint64 {
	d.Helper()
	p, err := d.c.Partition(d.within(startTimeout), d.topic, 0)
	d.try(err)
	return p.Epoch
}

// leads says whether the door's partition is led, in an epoch after that one, and not by a node that is dead: its lease
// may last on, so that it is elected.
func (d *door) leads(after uint64, dead ...*harness.Node) bool {
	p, err := d.c.Partition(d.within(2*time.Second), d.topic, 0)
	return err == nil && p.State != "leaderless" && p.Epoch > after &&
		!slices.ContainsFunc(dead, func(n *harness.Node) bool { return n.Name == p.Leader })
}

// leaderName is who leads the door's partition.
func (d *door) leaderName() string {
	if n, err := d.c.Leader(d.within(2*time.Second), d.topic, 0); err == nil {
		return n.Name
	}
	return "nobody"
}

// await polls until holds is true or patience ends.
func (d *door) await(patience time.Duration, holds func() bool) bool {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// create makes the door's topic.
func (d *door) create(settings map[string]any) {
	d.Helper()
	ctx := d.within(startTimeout)
	replicas, _ := settings["replicas"].(int)
	delete(settings, "replicas")
	path := "/topic/create?topic=" + d.topic
	if replicas > 0 {
		path += "&replicas=" + strconv.Itoa(replicas)
	}
	d.try(harness.Post(ctx, d.c.Nodes[0].HTTP, path, nil, nil))
	if len(settings) > 0 {
		settings["version"] = 0
		d.try(harness.Post(ctx, d.c.Nodes[0].HTTP, "/topic/settings?topic="+d.topic, settings, nil))
	}
	d.try(d.c.Healthy(ctx))
}

// publish publishes count messages and returns how many of them were answered OK. One that is not answered OK within
// patience may be lost.
func (d *door) publish(count int, patience time.Duration, at ...*harness.Node) int {
	d.Helper()
	if len(at) == 0 {
		at = d.c.Nodes
	}
	var seeds []string
	for _, n := range at {
		if n.Running() {
			seeds = append(seeds, n.Native)
		}
	}
	ctx, cancel := context.WithTimeout(d.Context(), patience)
	defer cancel()
	first := d.number
	d.number += count
	c, err := client.Dial(ctx, seeds, client.Options{Logger: quietLog})
	if err != nil {
		return 0
	}
	defer c.Close()
	p, err := c.Producer(ctx, d.topic, client.ProducerOptions{DeliveryTimeout: patience, MaxBatchBytes: 32 << 10})
	if err != nil {
		return 0
	}
	oks := 0
	for k := first; k < first+count; k++ {
		p.Produce(ctx, &client.Message{Body: d.bodyOf(k)}, func(_ *client.Message, id client.ID, err error) {
			if err != nil {
				return
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			oks++
			d.acked[k] = id
		})
	}
	_ = p.Flush(ctx)
	_ = p.Close(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	return oks
}

// mustPublish publishes messages that nothing disturbs.
func (d *door) mustPublish(count int, at ...*harness.Node) {
	d.Helper()
	if n := d.publish(count, startTimeout, at...); n != count {
		d.Fatalf("%d of %d messages were answered OK", n, count)
	}
}

// bodyOf is the body of message k: nobody else's bytes are like it.
func (d *door) bodyOf(k int) []byte {
	body := bytes.Repeat([]byte{'.'}, d.data.body)
	copy(body, fmt.Sprintf("door<%08d>", k))
	return body
}

var bodyMark = regexp.MustCompile(`door<([0-9]{8})>`)

// read returns the numbers of the messages that can be read now. An error: not all could be read.
func (d *door) read() (map[int]bool, error) {
	found := map[int]bool{}
	var seeds []string
	for _, n := range d.c.Nodes {
		if n.Running() {
			seeds = append(seeds, n.Native)
		}
	}
	ctx, cancel := context.WithTimeout(d.Context(), startTimeout)
	defer cancel()
	first, cancelFirst := context.WithTimeout(ctx, 5*time.Second)
	defer cancelFirst()
	c, err := client.Dial(first, seeds, client.Options{Logger: quietLog})
	if err != nil {
		return found, err
	}
	defer c.Close()
	r, err := c.Reader(first, d.topic, 0, client.FromOldest())
	if err != nil {
		return found, err
	}
	defer r.Close()
	for last := time.Now(); ; {
		brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		m, err := r.Next(brief)
		cancel()
		if err == nil {
			last = time.Now()
			if mark := bodyMark.FindSubmatch(m.Body); mark != nil {
				k, _ := strconv.Atoi(string(mark[1]))
				found[k] = true
			}
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return found, err
		}
		end, heard := r.Newest()
		if at, known := r.Position(); heard && known && at >= end {
			return found, nil
		}
		if time.Since(last) > 5*time.Second {
			return found, err
		}
	}
}

// kill ends nodes as a power cut does: all at once.
func (d *door) kill(nodes ...*harness.Node) {
	d.Helper()
	for _, n := range nodes {
		d.try(n.Pause())
	}
	for _, n := range nodes {
		d.try(n.Kill())
	}
}

// start starts a node and waits until it is ready or has ended. It returns whether it is ready.
func (d *door) start(n *harness.Node) bool {
	d.Helper()
	d.try(n.Start())
	ready := n.Ready(d.within(doorPatience)) == nil
	d.listen()
	return ready
}

// verdict is what /health says.
type verdict struct {
	Healthy bool     `json:"healthy"`
	Health  string   `json:"health"`
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// health asks a node how it is. A node that does not answer is not healthy.
func (d *door) health(n *harness.Node) verdict {
	v := verdict{Health: "no answer"}
	if !n.Running() {
		return verdict{Health: "does not run"}
	}
	ctx, cancel := context.WithTimeout(d.Context(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/health", nil)
	d.try(err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return v
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil {
		_ = json.Unmarshal(data, &v)
	}
	return v
}

// ages are the times in a sentence: those that differ in nothing else are one.
var ages = regexp.MustCompile(`[0-9.]+(ms|s)\b`)

// listen keeps what all nodes say of their health now.
func (d *door) listen() {
	for _, n := range d.c.Nodes {
		d.heard[n.Name+": "+ages.ReplaceAllString(d.health(n).Health, "(time)")] = true
	}
}

// says reports whether a node has said, in its health or in a line of its log above INFO, what a pattern matches.
func (d *door) says(n *harness.Node, pattern *regexp.Regexp) bool {
	d.listen()
	for said := range d.heard {
		if strings.HasPrefix(said, n.Name+": ") && pattern.MatchString(strings.TrimPrefix(said, n.Name)) {
			return true
		}
	}
	return pattern.MatchString(warnings(n, 1000))
}

// fsck checks the directory of a stopped node and returns whether it called it clean, and its last line.
func (d *door) fsck(dir string) (clean bool, says string) {
	d.Helper()
	program, err := harness.Binary()
	d.try(err)
	var out []byte
	d.await(doorPatience, func() bool { // the kernel frees the lock of a killed process late
		out, err = exec.Command(program, "fsck", dir).CombinedOutput()
		var exit *exec.ExitError
		return !errors.As(err, &exit) || exit.ExitCode() != 2
	})
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return err == nil, lines[len(lines)-1]
}

// copyDir copies a directory as cp -a does. What vanishes meanwhile is left out. skip names entries that are left out.
func (d *door) copyDir(to, from string, skip ...string) {
	d.Helper()
	d.try(os.Mkdir(to, 0o700))
	entries, err := os.ReadDir(from)
	d.try(err)
	for _, e := range entries {
		if slices.Contains(skip, e.Name()) {
			continue
		}
		out, err := exec.Command("cp", "-a", filepath.Join(from, e.Name()), to).CombinedOutput()
		if err != nil && !bytes.Contains(out, []byte("No such file")) {
			d.Fatalf("cp: %v: %s", err, out)
		}
	}
}

// marksIn adds the numbers of the messages whose bodies stand in files below a directory.
func (d *door) marksIn(dir string, into map[int]bool) {
	d.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // what is gone holds nothing
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // the same
		}
		for _, mark := range bodyMark.FindAllSubmatch(data, -1) {
			k, _ := strconv.Atoi(string(mark[1]))
			into[k] = true
		}
		return nil
	})
	d.try(err)
}

// removeTree removes a directory in which a running node may just be making a file.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	for range 20 {
		if err == nil {
			break
		}
		err = os.RemoveAll(dir)
	}
	return err
}
