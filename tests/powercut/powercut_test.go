//go:build powercut

package powercut

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/tests/powercut/volatile"
)

const (
	cutsVariable   = "TEST_POWER_CUTS"
	seedVariable   = "TEST_POWER_SEED"
	insideVariable = "TEST_POWERCUT_INSIDE"
	defaultCuts    = 25
	deviceBytes    = 512 << 20 // a small part of it is ever touched
	// childTimeout bounds a child's start, its reading of what must be there, and the load until the cut.
	childTimeout = 5 * time.Minute
	// maxAcks is how many messages a node acknowledges at most before the cut.
	maxAcks = 600
	// lastWords is for the lines of publishes that were acknowledged in the moment of the cut; more of them are found,
	// none is invented.
	lastWords = 100 * time.Millisecond
)

// refused says why nothing can be mounted here.
var refused = volatile.Missing()

// TestMain is four programs: the server of the disks; the test, which runs itself in a mount namespace of its own, so
// that no mount outlives it; that one; and the child that runs engines.
func TestMain(m *testing.M) {
	volatile.Main()
	if text := os.Getenv(orderVariable); text != "" {
		fmt.Fprintln(os.Stderr, childMain(text))
		os.Exit(1)
	}
	if os.Getenv(insideVariable) == "" && refused == nil {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), insideVariable+"=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		err := cmd.Run()
		if cmd.ProcessState != nil {
			os.Exit(cmd.ProcessState.ExitCode())
		}
		refused = fmt.Errorf("no mount namespace can be made: %w", err)
	}
	os.Exit(m.Run())
}

// world is the disks of three nodes with one kind of file system.
type world struct {
	t      *testing.T // of the mode that is tried
	root   *testing.T
	server *volatile.Server
	kind   string
	all    []*volatile.FileSystem
	dir    string
	rng    *rand.Rand
}

// variant is one way to run the engine; its data stays from cut to cut.
type variant struct {
	w        *world
	mode     string
	nodes    int
	in       string // its data directory on the disks; empty: name
	life     int
	expected []string // acknowledged before the last cut
	acked    int
}

func (v *variant) name() string {
	if v.in != "" {
		return v.in
	}
	return fmt.Sprintf("%s-%d", v.mode, v.nodes)
}

// The promise of the product: what was answered OK is on stable storage of every node that is in sync, whichever way it
// was written.
func TestPowerCut(t *testing.T) {
	if refused != nil {
		t.Skipf("no power can be cut here: %v", refused)
	}
	cuts, seed := number(t, cutsVariable, defaultCuts), uint64(number(t, seedVariable, int(time.Now().UnixNano())))
	t.Logf("%d cuts, seed %d", cuts, seed)
	server, err := volatile.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	var worlds []*world
	for _, kind := range []string{"ext4", "xfs"} {
		if err := volatile.KindMissing(kind); err != nil {
			t.Logf("not tried on %s: %v", kind, err)
			continue
		}
		worlds = append(worlds, newWorld(t, server, kind, seed))
	}
	if len(worlds) == 0 {
		t.Skip("there is no file system to try it on")
	}
	modes := []string{"ring", "pwritev2", "fallback"}
	for i, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			for _, w := range worlds {
				w.t = t
			}
			cutMode(t, worlds, mode, (cuts+len(modes)-1-i)/len(modes))
		})
	}
}

// cutMode cuts the power of each kind of file system in turn, under one node and under three.
func cutMode(t *testing.T, worlds []*world, mode string, cuts int) {
	var variants []*variant
	for _, nodes := range []int{1, 3} {
		for _, w := range worlds {
			variants = append(variants, &variant{w: w, mode: mode, nodes: nodes})
		}
	}
	began, acked := time.Now(), 0
	for cut := 0; cut < cuts && !t.Failed(); cut++ {
		v := variants[cut%len(variants)]
		v.w.cut(v)
	}
	for _, v := range variants {
		if v.life > 0 && !t.Failed() {
			v.w.verify(v)
		}
		acked += v.acked
	}
	t.Logf("%d cuts, %d messages acknowledged, in %v", cuts, acked, time.Since(began).Round(time.Millisecond))
}

func number(t *testing.T, variable string, usual int) int {
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

func newWorld(t *testing.T, server *volatile.Server, kind string, seed uint64) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "penstock-powercut") // not t.TempDir, which would remove what is in a mount
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: t, server: server, kind: kind, dir: dir, rng: rand.New(rand.NewPCG(seed, uint64(len(kind))))}
	t.Cleanup(func() { w.end(w.remove()) })
	for i := range 3 {
		device, path := w.path("device", i), w.path("mnt", i)
		w.try(errors.Join(os.Mkdir(device, 0o700), os.Mkdir(path, 0o700)))
		d, err := server.Open(device, deviceBytes)
		w.try(err)
		t.Cleanup(func() { w.end(d.Close()) })
		f, err := volatile.Make(d, kind, path)
		w.try(err)
		t.Cleanup(func() { w.end(f.Unmount()) })
		w.all = append(w.all, f)
	}
	return w
}

func (w *world) path(what string, node int) string {
	return filepath.Join(w.dir, fmt.Sprint(what, node))
}

// remove takes away the files of this test. Mount points are empty by now; one that is not stays.
func (w *world) remove() error {
	for i := range w.all {
		if err := errors.Join(os.Remove(w.path("device", i)), os.Remove(w.path("mnt", i))); err != nil {
			return err
		}
	}
	return os.RemoveAll(w.dir)
}

func (w *world) try(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", w.kind, err)
	}
}

func (w *world) report(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Errorf("%s: %v", w.kind, err)
	}
}

// end reports what went wrong when the whole test ends: the subtests are over.
func (w *world) end(err error) {
	w.t = w.root
	w.report(err)
}

// cut runs a child until some messages were acknowledged, takes the power of all its disks, and keeps what it
// acknowledged.
func (w *world) cut(v *variant) {
	w.t.Helper()
	disks := w.all[:v.nodes]
	c := w.start(v, disks)
	c.until(v.nodes * (1 + w.rng.IntN(maxAcks)))
	if w.t.Failed() {
		c.end()
		return
	}
	lost := w.powerOff(c, disks)
	w.t.Logf("%s, %s, life %d: %d acknowledged, the cut took %d sectors", w.kind, v.name(), v.life, len(c.acked), lost)
	v.expected = c.acked
	v.acked += len(c.acked)
	v.life++
}

// powerOff takes the power of the disks, ends the child, and gives the disks their power back; they are unmounted then.
// It returns how many sectors were lost.
func (w *world) powerOff(c *child, disks []*volatile.FileSystem) (lost int) {
	w.t.Helper()
	share := 0.0 // half of the cuts lose all that is not flushed, the others lose some sectors of it
	if w.rng.IntN(2) == 0 {
		share = w.rng.Float64()
	}
	var devices []*volatile.Device
	for _, d := range disks {
		devices = append(devices, d.Device)
	}
	lost, err := w.server.Cut(share, w.rng.Uint64(), devices...)
	w.try(err)
	for _, d := range disks {
		w.report(d.Shutdown())
	}
	time.Sleep(lastWords)
	c.end()
	for _, d := range disks {
		w.try(d.Unmount())
		w.try(d.Revive())
	}
	return lost
}

// verify starts a last child that only reads.
func (w *world) verify(v *variant) {
	w.t.Helper()
	disks := w.all[:v.nodes]
	c := w.start(v, disks)
	c.until(0)
	c.end()
	for _, d := range disks {
		w.try(d.Unmount())
	}
}

// child is a running process of engines.
type child struct {
	w     *world
	v     *variant
	cmd   *exec.Cmd
	in    *os.File
	out   *bufio.Scanner
	log   bytes.Buffer
	timer *time.Timer
	acked []string
	lost  []string
	began bool
	saved saved // what it said of its backup
}

// start mounts the disks and starts a child on them.
func (w *world) start(v *variant, disks []*volatile.FileSystem) *child {
	w.t.Helper()
	return w.startWith(v, disks, order{})
}

// startWith is start with an order that says more.
func (w *world) startWith(v *variant, disks []*volatile.FileSystem, o order) *child {
	w.t.Helper()
	o.Mode, o.Life = v.mode, v.life
	o.Meta, o.Expected = filepath.Join(w.dir, v.name()), filepath.Join(w.dir, v.name()+".acked")
	w.try(os.MkdirAll(o.Meta, 0o700))
	w.try(os.WriteFile(o.Expected, []byte(strings.Join(v.expected, "\n")), 0o600))
	for _, d := range disks {
		w.try(d.Mount())
		o.Dirs = append(o.Dirs, filepath.Join(d.Path, v.name()))
	}
	text, err := json.Marshal(&o)
	w.try(err)
	c := &child{w: w, v: v, cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	c.cmd.Stderr = &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, stdout, err := os.Pipe()
	w.try(err)
	c.cmd.Stdout = stdout
	err = c.cmd.Start()
	stdout.Close()
	w.try(err)
	c.in, c.out = r, bufio.NewScanner(r)
	w.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	c.timer = time.AfterFunc(childTimeout, func() { _ = c.cmd.Process.Kill() })
	return c
}

// until returns when the load began and n messages were acknowledged. A child that ends before fails the test. Of one
// that lost messages the judgement is known when the load begins: a cluster whose copies differ may acknowledge nothing
// any more.
func (c *child) until(n int) {
	for !c.began || len(c.acked) < n && len(c.lost) == 0 {
		if !c.line() {
			c.w.t.Errorf("%s, %s, life %d: the child ended with %d acknowledged, before the power was cut:\n%s",
				c.w.kind, c.v.name(), c.v.life, len(c.acked), tail(c.log.String()))
			return
		}
	}
}

// line takes the child's next line; false: there is none any more.
func (c *child) line() bool {
	if !c.out.Scan() {
		return false
	}
	line := c.out.Text()
	switch {
	case line == lineLoad:
		c.began = true
	case strings.HasPrefix(line, lineAcked):
		c.acked = append(c.acked, line[len(lineAcked):])
	case strings.HasPrefix(line, lineLost):
		c.lost = append(c.lost, line[len(lineLost):])
	case strings.HasPrefix(line, lineBackup):
		c.saved.take(line[len(lineBackup):], len(c.acked))
	}
	return true
}

// end kills the child, hears its last words, and judges it.
func (c *child) end() {
	_ = c.cmd.Process.Signal(unix.SIGKILL)
	for c.line() {
	}
	_ = c.cmd.Wait() // killed
	c.in.Close()
	c.timer.Stop()
	if len(c.lost) > 0 {
		c.w.t.Errorf("%s, %s, life %d: LOST %d of the %d messages that were acknowledged before the power cut: %q\n%s",
			c.w.kind, c.v.name(), c.v.life, len(c.lost), len(c.v.expected), c.lost[:min(len(c.lost), 5)], tail(c.log.String()))
	}
}

func tail(s string) string { return s[max(0, len(s)-8<<10):] }
