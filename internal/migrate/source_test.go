package migrate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An nsqd holds an exclusive flock on its directory. A reader holds a shared one, so that no nsqd starts in the
// meantime.
func TestLock(t *testing.T) {
	dir := unpack(t, "clean")
	lock, err := os.Open(dir)
	must(t, err)
	defer lock.Close()
	must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	if _, err := Open(dir, SourceOptions{}); !errors.Is(err, ErrRunning) {
		t.Errorf("%v, want ErrRunning", err)
	}
	s, err := Open(dir, SourceOptions{Running: true})
	must(t, err)
	if !s.Running {
		t.Error("Running is not set")
	}
	if _, _, err := Import(t.Context(), s, nil, nil, nil, Options{}); !errors.Is(err, ErrRunning) {
		t.Errorf("%v, want ErrRunning", err)
	}
	must(t, s.Close())
	must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_UN))
	s, err = Open(dir, SourceOptions{})
	must(t, err)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("nsqd could lock the directory: %v", err)
	}
	must(t, s.Close())
	must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
}

func TestUnlisted(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, SourceOptions{}); !errors.Is(err, ErrNoData) {
		t.Errorf("%v, want ErrNoData", err)
	}
	write(t, dir, "t:c.diskqueue.000000.dat", rec(1, "a"))
	write(t, dir, "u.diskqueue.000000.dat", rec(2, "b"))
	write(t, dir, "x:y:z.diskqueue.000000.dat", rec(2, "b"))
	write(t, dir, metadataFile, []byte(`{"topics":[{"name":"t","channels":[{"name":"b"}]},{"name":"../../etc"}]}`))
	s := open(t, dir, SourceOptions{})
	if len(s.Topics) != 1 || len(s.Topics[0].Channels) != 1 || len(s.Unlisted) != 2 || len(s.Notes) != 2 {
		t.Fatalf("%+v", s)
	}
	s = open(t, dir, SourceOptions{Unlisted: true})
	if len(s.Topics) != 2 || len(s.Topics[0].Channels) != 2 || len(s.Unlisted) != 0 {
		t.Fatalf("%+v", s)
	}
	if got, _ := bodies(t, s.Topics[0].Channels[1].Queue); len(got) != 1 || got[0] != "a" {
		t.Errorf("%q", got)
	}
	// Without nsqd.dat the topics are known only by their files.
	must(t, os.Remove(filepath.Join(dir, metadataFile)))
	s = open(t, dir, SourceOptions{})
	if len(s.Topics) != 2 || !strings.Contains(strings.Join(s.Notes, " "), "nsqd.dat is missing") {
		t.Fatalf("%+v", s)
	}
	write(t, dir, metadataFile, []byte(`{"topics":`))
	if _, err := Open(dir, SourceOptions{}); err == nil || !strings.Contains(err.Error(), "not nsqd's JSON") {
		t.Errorf("%v", err)
	}
}

func TestFingerprint(t *testing.T) {
	dir := unpack(t, "clean")
	print := func(dir string) string {
		s, err := Open(dir, SourceOptions{})
		must(t, err)
		defer s.Close()
		f, err := s.Fingerprint()
		must(t, err)
		return f
	}
	first := print(dir)
	if again, other := print(dir), print(unpack(t, "clean")); again != first || other != first {
		t.Errorf("a copy has another fingerprint: %s %s %s", first, again, other)
	}
	write(t, dir, "alone.diskqueue.meta.dat", []byte("9\n0,37\n0,370\n")) // an nsqd has delivered one message
	if print(dir) == first {
		t.Error("the fingerprint did not change")
	}
}

func TestState(t *testing.T) {
	path := filepath.Join(t.TempDir(), StateFile)
	s, err := LoadState(path)
	must(t, err)
	r, err := s.record("/a", "f1", false)
	must(t, err)
	r.Done = true
	r.Topics["t"] = &topicState{Step: stepDone, First: 7}
	must(t, s.save())
	s, err = LoadState(path)
	must(t, err)
	if !s.Imported("/a") || s.Imported("/b") || s.Imports[0].Topics["t"].First != 7 {
		t.Errorf("%+v", s)
	}
	if r, err := s.record("/copy", "f1", false); err != nil || !r.Done {
		t.Errorf("a copy is imported again: %v", err)
	}
	if _, err := s.record("/a", "f2", false); !errors.Is(err, ErrChanged) {
		t.Errorf("%v, want ErrChanged", err)
	}
	if r, err := s.record("/a", "f2", true); err != nil || r.Done {
		t.Errorf("--again: %v", err)
	}
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := LoadState(path); err == nil {
		t.Error("a broken record was taken for an empty one")
	}
}
