//go:build powercut

package powercut

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/backup"
	"penstock/tests/powercut/volatile"
)

// maxBeforeBackup is how many messages a child acknowledges at most before it begins its backup.
const maxBeforeBackup = 200

// slowRate stretches backups that the cut is to meet.
const slowRate = 256 << 10

// acknowledged counts the child's own messages.
var acknowledged atomic.Int64

// backUp makes a backup under load, and says what becomes of it. What was acknowledged before its first line was
// acknowledged before the backup began.
func (o *order) backUp(e *node.Engine) error {
	after := rand.Int64N(maxBeforeBackup)
	for acknowledged.Load() < after {
		time.Sleep(time.Millisecond)
	}
	say(lineBackup + stateBegins)
	if err := e.Backups().Start(node.BackupOptions{Dir: o.Backup, Rate: o.Rate, MadeBy: "powercut"}); err != nil {
		say(lineBackup+"%v", err)
		select {}
	}
	for s := e.Backups().Status(); ; s = e.Backups().Status() {
		if s.State == node.BackupDone || s.State == node.BackupFailed {
			say(lineBackup+"%s", s.State)
			select {}
		}
		time.Sleep(100 * time.Microsecond)
	}
}

const stateBegins = "begins"

// saved is what a child said of its backup.
type saved struct {
	begun  bool
	before int    // acknowledged when it began
	state  string // the last one
}

func (s *saved) take(state string, acked int) {
	if s.state = state; state == stateBegins {
		s.begun, s.before = true, acked
	}
}

func (s *saved) done() bool { return s.state == string(node.BackupDone) }

// A power cut during a backup, or right after it: the node opens with everything that was acknowledged. A backup that
// was said to be done restores to everything that was acknowledged before it began. What is left of another one does
// so, too, or a restore says that it is incomplete, and leaves nothing.
func TestPowerCutDuringBackup(t *testing.T) {
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
	var variants []*variant
	for kind, mode := range map[string]string{"ext4": "ring", "xfs": "pwritev2"} {
		if err := volatile.KindMissing(kind); err != nil {
			t.Logf("not tried on %s: %v", kind, err)
			continue
		}
		variants = append(variants, &variant{w: newWorld(t, server, kind, seed), mode: mode, nodes: 1})
	}
	if len(variants) == 0 {
		t.Skip("there is no file system to try it on")
	}
	var whole, incomplete int
	for cut := 0; cut < cuts && !t.Failed(); cut++ {
		v := variants[cut%len(variants)]
		if v.w.cutBackup(v) {
			whole++
		} else {
			incomplete++
		}
	}
	for _, v := range variants {
		if v.life > 0 && !t.Failed() {
			v.w.verify(v)
			v.w.nothingIsHeld(v)
		}
	}
	t.Logf("%d backups were whole after the cut, %d incomplete", whole, incomplete)
	if cuts >= defaultCuts && !t.Failed() && (whole == 0 || incomplete == 0) {
		t.Error("the cuts met only one kind of backup: the test shows nothing of the other")
	}
}

// cutBackup cuts the power while a child makes a backup or when it has made one, and judges what is left of the backup.
func (w *world) cutBackup(v *variant) (whole bool) {
	w.t.Helper()
	disks := w.all[:1]
	from := filepath.Join(disks[0].Path, fmt.Sprint("backup", v.life))
	done, rate := w.rng.IntN(3) == 0, int64(slowRate)
	if done {
		rate = -1
	}
	c := w.startWith(v, disks, order{Backup: from, Rate: rate})
	c.untilBackup(done, w.rng.IntN(1+w.rng.IntN(maxAcks))) // more often early than late
	if w.t.Failed() {
		c.end()
		return false
	}
	w.powerOff(c, disks)
	before := slices.Concat(v.expected, c.acked[:c.saved.before])
	w.t.Logf("%s, life %d: %d acknowledged, %d of them before the backup, which was %q", w.kind, v.life, len(c.acked),
		c.saved.before, c.saved.state)
	v.expected = c.acked
	v.acked += len(c.acked)
	v.life++
	w.try(disks[0].Mount())
	to := from + ".restored"
	_, err := backup.Restore(from, to, backup.RestoreOptions{})
	if err != nil {
		w.incomplete(&c.saved, err, to)
	}
	w.try(os.RemoveAll(from))
	w.try(disks[0].Unmount())
	if err == nil {
		w.readRestored(v, disks, filepath.Base(to), before)
	}
	return err == nil
}

// untilBackup returns when the backup is done, or when n messages were acknowledged since it began.
func (c *child) untilBackup(done bool, n int) {
	for !c.saved.begun || done && !c.saved.done() || !done && len(c.acked) < c.saved.before+n {
		if len(c.lost) > 0 {
			return
		}
		if !c.line() || c.saved.state == string(node.BackupFailed) {
			c.w.t.Errorf("%s, life %d: the child ended, or its backup failed (%q), before the power was cut:\n%s",
				c.w.kind, c.v.life, c.saved.state, tail(c.log.String()))
			return
		}
	}
}

// incomplete judges a backup that a restore refuses.
func (w *world) incomplete(s *saved, err error, to string) {
	w.t.Helper()
	switch {
	case s.done():
		w.t.Errorf("%s: the backup was done before the power was cut: %v", w.kind, err)
	case !strings.Contains(err.Error(), "is no complete backup") || !strings.Contains(err.Error(), "nothing was restored"):
		w.t.Errorf("%s: an unfinished backup is refused, but not as one: %v", w.kind, err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("%s: the refused restore left something: %v", w.kind, err)
	}
}

// readRestored starts a child on the restored directory, and demands what was acknowledged before the backup began.
func (w *world) readRestored(v *variant, disks []*volatile.FileSystem, name string, before []string) {
	w.t.Helper()
	r := &variant{w: w, mode: v.mode, nodes: 1, life: v.life, expected: before, in: name}
	w.verify(r)
	w.try(disks[0].Mount())
	w.try(os.RemoveAll(filepath.Join(disks[0].Path, name)))
	w.try(disks[0].Unmount())
}

// nothingIsHeld checks that the node that was started last has removed the second names of segments that unfinished
// backups left.
func (w *world) nothingIsHeld(v *variant) {
	w.t.Helper()
	w.try(w.all[0].Mount())
	left, err := os.ReadDir(filepath.Join(w.all[0].Path, v.name(), "held"))
	if len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("%s: %d second names of segments are left: %v", w.kind, len(left), err)
	}
	w.try(w.all[0].Unmount())
}
