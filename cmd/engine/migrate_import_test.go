package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	wire "encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/cmd/engine/internal/data"
	"penstock/internal/migrate"
	"penstock/internal/node"
)

// nsqdDir extracts the data directory of a real nsqd; see internal/migrate/testdata/make.sh.
func nsqdDir(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("../../internal/migrate/testdata", name+".tar.gz"))
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		must(t, err)
		if h.Typeflag == tar.TypeReg {
			data, err := io.ReadAll(r)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), data, 0o600))
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func numbered(prefix string, from, to int, without ...int) (all []string) {
	for i := from; i <= to; i++ {
		if !slices.Contains(without, i) {
			all = append(all, fmt.Sprintf("%s-%d", prefix, i))
		}
	}
	slices.Sort(all)
	return all
}

// backlogs holds sorted bodies: under "topic" those that wait at the topic, under "topic:channel" those of the channel.
type backlogs map[string][]string

func cleanBacklogs() backlogs {
	return backlogs{
		"alone": numbered("alone", 0, 9), "held": numbered("held", 0, 4), "held:late": nil, "orders": nil,
		"orders:audit": numbered("order", 0, 39, 5, 6, 7, 8, 9, 30), "orders:billing": numbered("order", 20, 39),
		"orders:idle": nil,
		"quiet":       nil, "quiet:stopped": numbered("quiet", 0, 2),
	}
}

// contents opens a data directory and consumes all channels. A new channel reads the messages that wait at a topic.
// Every message must arrive with attempts 1, since the import's own deliveries do not count.
func contents(t *testing.T, dir string) (got backlogs, paused []string) {
	t.Helper()
	e, err := node.Open(t.Context(), node.Options{DataPath: dir, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	got = backlogs{}
	for _, st := range e.Stats("", "") {
		topic, _ := e.Catalog().LookupTopic(st.Name)
		if st.Paused {
			paused = append(paused, st.Name)
		}
		for _, c := range topic.Channels() { // before Unpause: the topic's own messages are not the channel's yet
			if waiting := e.Stats(st.Name, c.Name())[0].Channels[0]; waiting.Paused {
				paused = append(paused, st.Name+":"+c.Name())
				must(t, c.Unpause(t.Context()))
			}
			waiting := e.Stats(st.Name, c.Name())[0].Channels[0].Depth
			got[st.Name+":"+c.Name()] = take(t, c, int(waiting))
		}
		got[st.Name] = nil
		if st.Depth > 0 {
			c, err := topic.CreateChannel(t.Context(), "rest")
			must(t, err)
			must(t, topic.Unpause(t.Context()))
			if st.Paused { // the older channels get them as well
				for _, c := range topic.Channels() {
					got[st.Name] = take(t, c, int(st.Depth))
				}
			} else {
				got[st.Name] = take(t, c, int(st.Depth))
			}
		}
	}
	return got, paused
}

func take(t *testing.T, c *node.Channel, n int) (bodies []string) {
	t.Helper()
	if n == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var mu sync.Mutex
	must(t, c.Consume(ctx, node.ConsumeOptions{MaxInFlight: 100}, func(_ context.Context, m *node.Message) error {
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, string(m.Body))
		if m.Attempts != 1 {
			t.Errorf("%s of %s has %d attempts", m.Body, c.Name(), m.Attempts)
		}
		if len(bodies) == n {
			cancel()
		}
		return nil
	}))
	slices.Sort(bodies)
	return bodies
}

func (b backlogs) compare(t *testing.T, want backlogs) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.Equal(b[name], want[name]) {
			t.Errorf("%s has %q, want %q", name, b[name], want[name])
		}
	}
	for name := range b {
		if _, ok := want[name]; !ok {
			t.Errorf("%s should not be there", name)
		}
	}
}

// importInto runs one import and closes the target.
func importInto(t *testing.T, from, to string, wrap func(migrate.Target) migrate.Target) (done bool, err error) {
	t.Helper()
	s, err := migrate.Open(from, migrate.SourceOptions{})
	must(t, err)
	defer s.Close()
	counts, err := migrate.Scan(t.Context(), s, nil)
	must(t, err)
	d, err := data.OpenDirTarget(t.Context(), to, 0, io.Discard)
	must(t, err)
	state, err := migrate.LoadState(filepath.Join(to, migrate.StateFile))
	must(t, err)
	_, done, err = migrate.Import(t.Context(), s, counts, wrap(d), state, migrate.Options{})
	must(t, d.Close())
	return done, err
}

func unwrapped(target migrate.Target) migrate.Target { return target }

var errStop = errors.New("stopped by the test")

// stopping is a target that counts the calls that change it. Call number at fails, before or after its effect, and so
// do all later ones.
type stopping struct {
	migrate.Target
	calls *int
	at    int
	after bool
}

func (s stopping) call(f func() error) error {
	*s.calls++
	switch {
	case *s.calls < s.at:
		return f()
	case *s.calls == s.at && s.after:
		_ = f()
	}
	return errStop
}

func (s stopping) CreateTopic(ctx context.Context, name string) error {
	return s.call(func() error { return s.Target.CreateTopic(ctx, name) })
}

func (s stopping) CreateChannel(ctx context.Context, topic, channel string) error {
	return s.call(func() error { return s.Target.CreateChannel(ctx, topic, channel) })
}

func (s stopping) PauseTopic(ctx context.Context, name string) error {
	return s.call(func() error { return s.Target.PauseTopic(ctx, name) })
}

func (s stopping) PauseChannel(ctx context.Context, topic, channel string) error {
	return s.call(func() error { return s.Target.PauseChannel(ctx, topic, channel) })
}

func (s stopping) Publish(ctx context.Context, topic string, bodies [][]byte) (id uint64, err error) {
	err = s.call(func() error { id, err = s.Target.Publish(ctx, topic, bodies); return err })
	return id, err
}

func (s stopping) Confirm(ctx context.Context, topic, channel string, last uint64, drop func(uint64) bool) error {
	return s.call(func() error {
		if !s.after {
			return s.Target.Confirm(ctx, topic, channel, last, drop)
		}
		n := 0 // the effect of a Confirm that was interrupted: about half of it
		return s.Target.Confirm(ctx, topic, channel, last, func(id uint64) bool { n++; return n%2 == 0 && drop(id) })
	})
}

// Wherever an import stops, the next one continues. In the end every channel has its own backlog, each message once.
func TestImportGoesOn(t *testing.T) {
	t.Parallel()
	from := nsqdDir(t, "clean")
	step := 1
	if testing.Short() {
		step = 5 // in both halves at other calls
	}
	for first, after := range []bool{false, true} {
		stopped := true
		for at := 1 + first; stopped; at += step {
			to := t.TempDir()
			calls := 0
			_, err := importInto(t, from, to, func(target migrate.Target) migrate.Target {
				return stopping{target, &calls, at, after}
			})
			if stopped = calls >= at; stopped && !errors.Is(err, errStop) {
				t.Fatalf("call %d: %v", at, err)
			}
			if stopped {
				done, err := importInto(t, from, to, unwrapped)
				if err != nil || !done {
					t.Fatalf("after a stop at call %d (after it: %v): %v %v", at, after, done, err)
				}
			}
			got, paused := contents(t, to)
			got.compare(t, cleanBacklogs())
			if !slices.Equal(paused, []string{"held", "quiet:stopped"}) {
				t.Errorf("paused: %q", paused)
			}
			if t.Failed() {
				t.Fatalf("stopped at call %d, after it: %v", at, after)
			}
		}
	}
}

// A second run does nothing. A directory in which an nsqd has worked since is refused. nsqd's directory is not changed.
func TestImportTwice(t *testing.T) {
	t.Parallel()
	from, to := nsqdDir(t, "clean"), t.TempDir()
	before := tree(t, from)
	if done, err := importInto(t, from, to, unwrapped); err != nil || !done {
		t.Fatal(done, err)
	}
	if done, err := importInto(t, from, to, unwrapped); err != nil || done {
		t.Fatalf("a second run imported: %v %v", done, err)
	}
	if done, err := importInto(t, nsqdDir(t, "clean"), to, unwrapped); err != nil || done {
		t.Fatalf("a copy was imported: %v %v", done, err)
	}
	if !maps.Equal(before, tree(t, from)) {
		t.Error("nsqd's directory changed")
	}
	must(t, os.WriteFile(filepath.Join(from, "alone.diskqueue.meta.dat"), []byte("9\n0,37\n0,370\n"), 0o600))
	if _, err := importInto(t, from, to, unwrapped); !errors.Is(err, migrate.ErrChanged) {
		t.Fatalf("%v, want ErrChanged", err)
	}
	got, _ := contents(t, to)
	got.compare(t, cleanBacklogs())
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	all := map[string]string{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		st, err := e.Info()
		must(t, err)
		all[e.Name()] = fmt.Sprint(st.Mode(), st.ModTime(), string(data))
	}
	return all
}

// After kill -9 of nsqd, the topic's old meta file offers messages that the channel has already. They are recognized as
// the same messages.
func TestImportAfterKill(t *testing.T) {
	to := t.TempDir()
	if done, err := importInto(t, nsqdDir(t, "killed"), to, unwrapped); err != nil || !done {
		t.Fatal(done, err)
	}
	got, _ := contents(t, to)
	got.compare(t, backlogs{"crash": nil, "crash:c": numbered("crash", 0, 29)})
}

// Several nsqds with the same topic are imported into one directory, which may have messages and channels of its own.
func TestImportIntoExisting(t *testing.T) {
	to := t.TempDir()
	e, err := node.Open(t.Context(), node.Options{DataPath: to, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	topic, err := e.Topic(t.Context(), "orders")
	must(t, err)
	for _, name := range []string{"audit", "other"} {
		_, err := topic.Channel(t.Context(), name)
		must(t, err)
	}
	_, err = topic.PublishMessage(t.Context(), node.Outgoing{Body: []byte("mine")})
	must(t, err)
	must(t, e.Close())
	if done, err := importInto(t, nsqdDir(t, "clean"), to, unwrapped); err != nil || !done {
		t.Fatal(done, err)
	}
	want := cleanBacklogs()
	want["orders:other"] = []string{"mine"}
	want["orders:audit"] = append([]string{"mine"}, want["orders:audit"]...)
	got, _ := contents(t, to)
	got.compare(t, want)
}

// For backlogs of any shape, each channel ends up with exactly the messages that it had.
func TestImportRandomBacklogs(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 2))
	for round := range 12 {
		from, to := t.TempDir(), t.TempDir()
		channels := []string{"a", "b", "c", "d"}[:1+rng.IntN(4)]
		want, queues := backlogs{"t": nil}, map[string][]byte{}
		for _, c := range channels {
			want["t:"+c] = nil
		}
		shape := rng.IntN(3)
		for id := range 1 + rng.IntN(5000) {
			body := fmt.Sprintf("m-%d", id)
			for i, c := range channels {
				has := rng.IntN(2) == 0
				switch shape {
				case 1:
					has = id >= i*100 // nested
				case 2:
					has = id%len(channels) == i // disjoint
				}
				if has {
					want["t:"+c] = append(want["t:"+c], body)
					queues[c] = append(queues[c], nsqdRecord(id, body)...)
				}
			}
		}
		meta := `{"topics":[{"name":"t","channels":[`
		for i, c := range channels {
			if i > 0 {
				meta += ","
			}
			meta += `{"name":"` + c + `"}`
			slices.Sort(want["t:"+c])
			must(t, os.WriteFile(filepath.Join(from, "t:"+c+".diskqueue.000000.dat"), queues[c], 0o600))
		}
		must(t, os.WriteFile(filepath.Join(from, "nsqd.dat"), []byte(meta+"]}]}"), 0o600))
		if done, err := importInto(t, from, to, unwrapped); err != nil || !done {
			t.Fatal(round, done, err)
		}
		got, _ := contents(t, to)
		got.compare(t, want)
		if t.Failed() {
			t.Fatalf("round %d, channels %q, shape %d", round, channels, shape)
		}
	}
}

// nsqdRecord returns a message in the form in which nsqd stores it.
func nsqdRecord(id int, body string) []byte {
	var b bytes.Buffer
	head := wire.BigEndian.AppendUint32(nil, uint32(26+len(body)))
	head = wire.BigEndian.AppendUint64(head, uint64(id))
	b.Write(wire.BigEndian.AppendUint16(head, 3))
	fmt.Fprintf(&b, "%016x%s", id, body)
	return b.Bytes()
}
