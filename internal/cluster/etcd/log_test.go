package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
)

func TestLogLines(t *testing.T) {
	t.Parallel()
	var b syncBuffer
	closing := false
	server := serverLogger(slog.New(slog.NewTextHandler(&b, nil)), func() bool {
		return closing
	}, nil).With(zap.String("id", "7"))
	server.Debug("one")
	server.Info("two")
	server.Warn("three", zap.Int("n", 3))
	server.Error("four")
	for range 1000 {
		server.Warn("again")
	}
	server.Warn("simple token is not cryptographically signed")
	clientLogger(slog.New(slog.NewTextHandler(&b, nil))).Error("five")
	closing = true
	server.Error("six")
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2+maxRepeats || !strings.HasSuffix(lines[0], `level=WARN msg="etcd: three" id=7 n=3`) ||
		!strings.HasSuffix(lines[1], `level=ERROR msg="etcd: four" id=7`) {
		t.Errorf("the log has\n%s", b.String())
	}
}

// A panic from which etcd recovered, to log it and go on panicking, ends the process with a sentence that has its text
// and the file.
func TestLastWordsNameTheFile(t *testing.T) {
	t.Parallel()
	var said error
	o := MemberOptions{Dir: "/data/etcd", Anew: "the command", Voters: many(3), Fatal: func(err error) { said = err }}
	o.Log = slog.New(slog.DiscardHandler)
	func() {
		defer func() {
			if p := recover(); p == nil {
				t.Error("etcd goes on")
			}
		}()
		serverLogger(o.Log, func() bool { return false }, lastHook{o: &o}).
			Panic("execute job failed", zap.String("job", "x"), zap.Any("panic", "assertion failed: page 7"))
	}()
	if said == nil || !errors.Is(said, ErrDirectory) ||
		!strings.Contains(said.Error(), "(execute job failed: assertion failed: page 7)") {
		t.Errorf("it says %v", said)
	}
	for stack, file := range map[string]string{
		"go.etcd.io/bbolt.(*Tx).Commit(":                     "/data/etcd/member/snap/db ",
		"go.etcd.io/etcd/server/v3/storage/wal.(*WAL).Save(": "/data/etcd/member/wal ",
		"go.etcd.io/raft/v3.(*raftLog).commitTo(":            "/data/etcd ",
	} {
		if err := o.ended("x", nil, stack); !strings.Contains(err.Error(), "cannot be used: "+file) {
			t.Errorf("%s: it says %v", stack, err)
		}
	}
}

// A lack of descriptors or of space, and a disk that fails, end the goroutine that found it, and neither the process
// nor the files, also where etcd has lost the error and kept its text.
func TestFatalLinesOfShortages(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{
		fmt.Errorf("open x: %w", syscall.EMFILE), &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC},
		errors.New("sync x: input/output error"), fmt.Errorf("mmap: %w", syscall.ENOMEM),
	} {
		broken, over, went := make(chan error, 1), make(chan struct{}), true
		o := MemberOptions{Dir: "/data/etcd", Voters: many(3), Log: slog.New(slog.DiscardHandler)}
		o.Fatal = func(err error) { t.Errorf("%v: the process ends: %v", cause, err) }
		log := serverLogger(o.Log, func() bool { return false }, lastHook{&o, broken})
		go func() {
			defer close(over)
			log.Fatal("failed to purge wal file", zap.Error(cause))
			went = false
		}()
		<-over
		if !went {
			t.Errorf("%v: the goroutine goes on", cause)
		}
		select {
		case err := <-broken:
			if errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), "failed to purge wal file: "+cause.Error()) {
				t.Errorf("it says %v", err)
			}
		default:
			t.Errorf("%v: nobody is told", cause)
		}
	}
}
