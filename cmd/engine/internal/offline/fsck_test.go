package offline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"

	"penstock/clog"
	"penstock/internal/node"
	"penstock/segment"
)

// small makes an engine that fills many commit log files and segments with a few megabytes.
func small(dir string) node.Options {
	return node.Options{
		DataPath: dir, Logger: slog.New(slog.DiscardHandler), BufferBytes: 8 << 20,
		CommitFileBytes: 1 << 20, CommitLiveBytes: 3 << 20, MinSegmentBytes: 64 << 10, MaxSegmentBytes: 512 << 10,
		MaxMessageBytes: 64 << 10, MaxBatchBytes: 256 << 10,
	}
}

// scratch is removed after the last test.
var scratch string

// childDir names the directory that a child of the test fills until it is killed.
const childDir = "FSCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		e, err := node.Open(context.Background(), small(dir))
		if err != nil {
			panic(err)
		}
		for n := 0; ; n++ {
			write(e, 200)
			fmt.Println(n)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "fsck")
		must(err)
		defer os.RemoveAll(dir)
		scratch = dir
		return m.Run()
	}())
}

// write publishes n batches of 10 messages to a topic with two channels, one of which confirms everything.
func write(e *node.Engine, n int) {
	ctx := context.Background()
	t, err := e.Topic(ctx, "orders")
	must(err)
	_, err = t.Channel(ctx, "keep")
	must(err)
	rng := rand.New(rand.NewPCG(7, 7))
	bodies := make([][]byte, 10)
	for range n {
		for i := range bodies {
			bodies[i] = make([]byte, 100+rng.IntN(400))
			for j := range bodies[i] {
				bodies[i][j] = byte(rng.Uint32())
			}
		}
		_, err := t.PublishBatch(ctx, bodies)
		must(err)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// original is a data directory whose segments hold most of it and whose commit log holds the rest. It is made once.
var original = sync.OnceValue(func() string {
	dir := filepath.Join(scratch, "data")
	e, err := node.Open(context.Background(), small(dir))
	must(err)
	write(e, 2000)
	must(e.Close())
	return dir
})

// dataDir is a copy of it.
func dataDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	must(os.CopyFS(dir, os.DirFS(original())))
	return dir
}

func fsck(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return execute("fsck", args...)
}

// files lists the files below a folder of dir that end in suffix, sorted.
func files(t *testing.T, dir, suffix string) []string {
	t.Helper()
	var names []string
	must(filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, suffix) {
			names = append(names, name)
		}
		return err
	}))
	sort.Strings(names)
	return names
}

// flip changes one bit of a file and returns how to undo it.
func flip(t *testing.T, name string, at int64, bit uint) (undo func()) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	must(err)
	b[0] ^= 1 << bit
	_, err = f.WriteAt(b[:], at)
	must(err)
	return func() {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must(err)
		defer f.Close()
		b[0] ^= 1 << bit
		_, err = f.WriteAt(b[:], at)
		must(err)
	}
}

func TestClean(t *testing.T) {
	dir := dataDir(t)
	code, out, errs := fsck(t, dir)
	if code != exitClean {
		t.Fatalf("exit code %d:\n%s%s", code, out, errs)
	}
	code, out, _ = fsck(t, "--json", dir)
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitClean {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if r.Segments < 3 || r.Batches == 0 || r.CommitLog.Batches == 0 || r.Topics != 1 || r.Partitions != 1 ||
		r.FindingCount != 0 {
		t.Errorf("the directory exercises too little: %+v", r)
	}
	if sum := r.Messages + r.CommitLog.Messages; sum != 20000 {
		t.Errorf("%d messages in segments and %d in the commit log, want 20000 together", r.Messages, r.CommitLog.Messages)
	}
}

// B31, B37: any single flipped bit of a segment, of its index or of the commit log is found, and nothing else is.
func TestFlippedBitsAreFound(t *testing.T) {
	dir := dataDir(t)
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(name string, at int64) {
		t.Helper()
		undo := flip(t, name, at, uint(rng.IntN(8)))
		code, out, errs := fsck(t, dir)
		undo()
		if strings.Count(out, "CORRUPT") != 1 {
			t.Fatalf("one flipped bit in byte %d of %s gives more findings:\n%s", at, name, out)
		}
		if code != exitCorrupt || !strings.Contains(out, "CORRUPT "+filepath.Dir(strings.TrimPrefix(name, dir+"/"))) {
			t.Fatalf("a flipped bit in byte %d of %s: exit code %d\n%s%s", at, name, code, out, errs)
		}
	}
	var r report
	_, out, _ := fsck(t, "--json", dir)
	must(json.Unmarshal([]byte(out), &r))
	segs := files(t, dir, ".seg")[:r.Segments]
	for i, name := range segs[:len(segs)-1] { // of the newest, only a part counts
		used := header(t, segs[i+1]).Base - header(t, name).Base
		for _, at := range []int64{rng.Int64N(88), segment.SegmentHeaderBytes, segment.SegmentHeaderBytes + int64(used) - 1} {
			check(name, at)
		}
		for range 4 {
			check(name, rng.Int64N(segment.SegmentHeaderBytes+int64(used)))
		}
	}
	for _, name := range files(t, dir, ".idx")[:len(segs)-1] {
		st, err := os.Stat(name)
		must(err)
		for range 3 {
			check(name, rng.Int64N(st.Size()))
		}
	}
	groups := groups(t, dir)
	for range 40 {
		g := groups[rng.IntN(len(groups)-1)] // the last one is the mark that promises the others
		check(filepath.Join(dir, g.file), g.at+rng.Int64N(g.bytes))
	}
	if code, out, _ := fsck(t, dir); code != exitClean {
		t.Fatalf("after everything was put back: exit code %d\n%s", code, out)
	}
}

func header(t *testing.T, name string) segmentHeader {
	t.Helper()
	f, err := os.Open(name)
	must(err)
	defer f.Close()
	p := make([]byte, segment.SegmentHeaderBytes)
	_, err = io.ReadFull(f, p)
	must(err)
	h, err := decodeSegmentHeader(p)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

type place struct {
	file      string
	at, bytes int64
	records   int
}

func groups(t *testing.T, dir string) (all []place) {
	t.Helper()
	d, err := openDirectory(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	must(clog.Scan(d.Disk, func(f clog.FileInfo, g clog.GroupInfo, _ []clog.RecordInfo) error {
		all = append(all, place{f.Name, g.Offset, g.Bytes, g.Records})
		return nil
	}))
	return all
}

func TestMissingFilesAreFound(t *testing.T) {
	dir := dataDir(t)
	segs := files(t, dir, ".seg")
	for _, name := range []string{segs[1], files(t, dir, ".clog")[0]} {
		must(os.Rename(name, name+".away"))
		code, out, errs := fsck(t, dir)
		if code != exitCorrupt {
			t.Errorf("without %s: exit code %d\n%s%s", name, code, out, errs)
		}
		must(os.Rename(name+".away", name))
	}
	// The first segment, with its index: nothing was ever trimmed.
	first := []string{segs[0], strings.TrimSuffix(segs[0], ".seg") + ".idx"}
	for _, name := range first {
		must(os.Rename(name, name+".away"))
	}
	if code, out, _ := fsck(t, dir); code != exitCorrupt || !strings.Contains(out, "segments before 1 are missing") {
		t.Errorf("without the first segment and its index: exit code %d\n%s", code, out)
	}
	for _, name := range first {
		must(os.Rename(name+".away", name))
	}
	// An index may be missing: it is made again.
	must(os.Remove(files(t, dir, ".idx")[0]))
	if code, out, _ := fsck(t, dir); code != exitClean {
		t.Errorf("without an index: exit code %d\n%s", code, out)
	}
	must(os.Truncate(segs[0], 5000))
	if code, out, _ := fsck(t, dir); code != exitCorrupt || !strings.Contains(out, "the file ends at byte 5000") {
		t.Errorf("with a short segment: exit code %d\n%s", code, out)
	}
}

// A segment of another topic with right checksums is not this one's.
func TestForeignSegmentIsFound(t *testing.T) {
	dir, other := dataDir(t), filepath.Join(t.TempDir(), "other")
	e, err := node.Open(t.Context(), small(other))
	must(err)
	write(e, 400)
	must(e.Close())
	data, err := os.ReadFile(files(t, other, ".seg")[0])
	must(err)
	must(os.WriteFile(files(t, dir, ".seg")[0], data, 0o600))
	if code, out, _ := fsck(t, dir); code != exitCorrupt || !strings.Contains(out, "belongs to topic") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestKilledNodeIsClean(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	line := make([]byte, 2)
	for range 10 { // turns of 200 batches
		_, err := io.ReadFull(out, line)
		must(err)
	}
	if code, _, errs := fsck(t, dir); code != exitNotChecked || !strings.Contains(errs, "a node is running") {
		t.Errorf("while the node runs: exit code %d, %s", code, errs)
	}
	must(cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
	code, report, errs := fsck(t, dir)
	if code != exitClean {
		t.Errorf("exit code %d:\n%s%s", code, report, errs)
	}
}

func TestCannotCheck(t *testing.T) {
	dir := dataDir(t)
	for name, args := range map[string][]string{
		"no argument":  {},
		"unknown flag": {"--fix", dir},
		"no directory": {filepath.Join(dir, "none")},
		"no node.json": {t.TempDir()},
	} {
		if code, _, errs := fsck(t, args...); code != exitNotChecked || errs == "" {
			t.Errorf("%s: exit code %d, %q", name, code, errs)
		}
	}
	node := filepath.Join(dir, "node.json")
	data, err := os.ReadFile(node)
	must(err)
	now, next := fmt.Appendf(nil, `"format": %d`, newestFormat), fmt.Appendf(nil, `"format": %d`, newestFormat+1)
	must(os.WriteFile(node, bytes.Replace(data, now, next, 1), 0o600))
	if code, _, errs := fsck(t, dir); code != exitNotChecked ||
		!strings.Contains(errs, fmt.Sprint("format ", newestFormat+1)) {
		t.Errorf("a newer format: exit code %d, %q", code, errs)
	}
}

// A last group that is not whole and that no mark promises may have been torn, and never acknowledged, or not: fsck
// says that it does not know. With the mark behind it the same group is a finding.
func TestTornEndIsNotJudged(t *testing.T) {
	dir := dataDir(t)
	all := groups(t, dir)
	last := all[len(all)-1]
	for last.bytes == 4096 && last.records == 0 {
		must(clearBlock(filepath.Join(dir, last.file), last.at))
		all = all[:len(all)-1]
		last = all[len(all)-1]
	}
	for _, off := range []int64{50, 70, 200} { // header, record header, batch
		undo := flip(t, filepath.Join(dir, last.file), last.at+off, 3)
		code, out, errs := fsck(t, dir)
		undo()
		if code != exitClean || !strings.Contains(out, "nobody can tell") || strings.Contains(out, "never answered") ||
			strings.Contains(out, "everything is as it was") {
			t.Errorf("byte %d: exit code %d\n%s%s", off, code, out, errs)
		}
	}
}

// clearBlock makes a block zeros, as it was before anything was written there.
func clearBlock(name string, at int64) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 4096), at)
	return errors.Join(err, f.Close())
}

// A damaged file of the commit log that its last group does not need is told, and is no damage: a node starts without
// it.
func TestUnneededCommitLogFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first := filepath.Join(dir, "clog", "0000000001.clog")
	e, err := node.Open(t.Context(), small(dir))
	must(err)
	write(e, 200)
	kept, err := os.ReadFile(first)
	must(err)
	for range 100 {
		if _, err := os.Stat(first); err != nil {
			break
		}
		write(e, 100)
	}
	must(e.Close())
	must(os.WriteFile(first, kept, 0o600))
	flip(t, first, int64(len(kept)/3), 3)
	code, out, errs := fsck(t, dir)
	if code != exitClean || !strings.Contains(out, "not needed any more") ||
		!strings.Contains(out, "0000000001.clog") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	must(os.Remove(first))
	if code, without, _ := fsck(t, dir); code != exitClean || counts(without) != counts(out) {
		t.Errorf("without that file: exit code %d\n%s, with it\n%s", code, without, out)
	}
}

// counts are the lines that say how much there is, without files and times.
func counts(out string) (all string) {
	for _, line := range strings.Split(out, "\n") {
		if _, replayed, ok := strings.Cut(line, " files, "); ok {
			all += replayed + "\n"
		}
	}
	return all
}

// A file that is missing before others is named as that, not as corrupt bytes.
func TestMissingCommitFile(t *testing.T) {
	dir := dataDir(t)
	oldest, what := files(t, dir, ".clog")[0], " is missing ("
	must(os.Remove(oldest))
	remain := len(groups(t, dir))
	if remain == 0 { // the log may have made its next file, and not yet moved on to it
		what = " is gone;"
	}
	rel, err := filepath.Rel(dir, oldest)
	must(err)
	code, out, errs := fsck(t, dir)
	if want := "CORRUPT " + rel + ": FORGOTTEN: " + rel + what; code != exitCorrupt ||
		!strings.Contains(out, want) || remain > 0 && !strings.Contains(out, "put it back") {
		t.Errorf("exit code %d, want %q\n%s%s", code, want, out, errs)
	}
	var r report
	_, out, _ = fsck(t, "--json", dir)
	err = json.Unmarshal([]byte(out), &r)
	if err != nil || !strings.HasPrefix(r.CommitLog.Forgotten, rel+what) {
		t.Errorf("%v, %q", err, r.CommitLog.Forgotten)
	}
}

// What is gone of a commit log that ends cleanly without it is found by name: its newest file, and the whole folder.
func TestForgottenCommitLog(t *testing.T) {
	for _, folder := range []bool{false, true} {
		dir := dataDir(t)
		logs := files(t, dir, ".clog")
		gone, says := "", ""
		for _, g := range groups(t, dir) {
			gone = g.file
		}
		if says = gone + " is gone"; folder {
			says = "the folder clog is empty or gone"
			for _, name := range logs {
				must(os.Remove(name))
			}
		} else {
			must(os.Remove(filepath.Join(dir, gone)))
		}
		before := strings.Join(files(t, dir, ""), " ")
		code, out, errs := fsck(t, dir)
		if code != exitCorrupt || !strings.Contains(out, "FORGOTTEN: "+says) || strings.Count(out, "CORRUPT") != 1 {
			t.Errorf("folder %v: exit code %d\n%s%s", folder, code, out, errs)
		}
		var r report
		_, out, _ = fsck(t, "--json", dir)
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.CommitLog.Forgotten != says {
			t.Errorf("folder %v: %v, %q", folder, err, r.CommitLog.Forgotten)
		}
		if after := strings.Join(files(t, dir, ""), " "); after != before {
			t.Errorf("folder %v: it changed\n%s\nto\n%s", folder, before, after)
		}
	}
}
