package etcd

import (
	"log/slog"
	"strings"
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
