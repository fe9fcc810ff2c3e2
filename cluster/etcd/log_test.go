package etcd

import (
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// A member that has forgotten what it promised panics, and a line says what to do.
func TestForgetfulMemberSaysWhatToDo(t *testing.T) {
	t.Parallel()
	var b syncBuffer
	server := serverLogger(slog.New(slog.NewTextHandler(&b, nil)), func() bool { return true })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it goes on")
			}
		}()
		server.Sugar().Panicf("tocommit(%d) is out of range [lastIndex(%d)]. Was the raft log corrupted, truncated, or "+
			"lost?", 39, 35)
	}()
	said := b.String()
	if !strings.Contains(said, "tocommit(39)") || !strings.Contains(said, "Empty the directory of the etcd") {
		t.Errorf("the log has\n%s", said)
	}
}

func TestLogLines(t *testing.T) {
	t.Parallel()
	var b syncBuffer
	closing := false
	server := serverLogger(slog.New(slog.NewTextHandler(&b, nil)), func() bool {
		return closing
	}).With(zap.String("id", "7"))
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
