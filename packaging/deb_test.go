//go:build packages

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	oldVersion = "0.0.1"
	newVersion = "9.9.9"
)

// changed is what the administrator adds to the settings.
const changed = "max_rdy_count = 77"

// dist has the packages of two versions of this tree. TEST_DIST names a directory that has them already.
var dist string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "penstock-dist")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if dist = os.Getenv("TEST_DIST"); dist == "" {
			dist = dir
			for _, version := range []string{oldVersion, newVersion} {
				if err := makeRelease(version, filepath.Join(dist, version)); err != nil {
					panic(err)
				}
			}
		}
		return m.Run()
	}())
}

func makeRelease(version, out string) error {
	return run(context.Background(), version, out, []string{"amd64"})
}

func deb(version string) string {
	return fmt.Sprintf("/packages/%s/penstock_%s-1_amd64.deb", version, version)
}

// load publishes numbered messages one after the other, and remembers which were answered OK.
type load struct {
	mu      sync.Mutex
	ok      []string
	refused int
	stop    atomic.Bool
	ended   chan struct{}
}

func (m *machine) startLoad() *load {
	l := &load{ended: make(chan struct{})}
	client := m.client()
	go func() {
		defer close(l.ended)
		for n := 0; !l.stop.Load(); n++ {
			body := fmt.Sprintf("message %06d", n)
			resp, err := client.Post("http://127.0.0.1:4151/pub?topic=orders", "", strings.NewReader(body))
			stored := err == nil && resp.StatusCode == 200
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			l.mu.Lock()
			if stored {
				l.ok = append(l.ok, body)
			} else {
				l.refused++
			}
			l.mu.Unlock()
			if !stored {
				time.Sleep(10 * time.Millisecond) // do not spin against a port that is closed
			}
		}
	}()
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ok)
}

// stored fails the test if the topic lacks a message that was answered OK.
func (m *machine) stored(l *load) {
	m.t.Helper()
	out := m.run("penstock read orders --from oldest")
	has := map[string]bool{}
	for _, body := range regexp.MustCompile(`message \d{6}`).FindAllString(out, -1) {
		has[body] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.ok, func(body string) bool { return !has[body] }); i >= 0 {
		m.t.Errorf("%q was answered OK and is gone; %d of %d are there", l.ok[i], len(has), len(l.ok))
	}
}

// A Debian package's whole life, on a machine with systemd.
func TestDebian(t *testing.T) {
	m := boot(t, dist)
	m.run("dpkg -i " + deb(oldVersion))
	m.says("systemctl is-enabled penstock; systemctl is-active penstock", "disabled\ninactive")
	m.says("stat -c '%U:%G %a' /var/lib/penstock /etc/penstock /etc/penstock/penstock.toml",
		"penstock:penstock 750\nroot:penstock 750\nroot:penstock 640\n")
	m.says("systemd-analyze verify penstock.service && echo verified", "verified")
	m.says("systemd-analyze security --offline=true --threshold=30 penstock.service && echo safe", "safe")

	m.run("systemctl enable --now penstock")
	m.says("systemctl is-active penstock", "active")
	m.says("stat -c '%U %a' /var/lib/penstock-backups", "penstock 750\n")
	m.run("penstock backup /var/lib/penstock-backups/first && ls /var/lib/penstock-backups/first/backup.json")
	m.says("penstock backup /tmp/lost 2>&1 || true", "backup-path")
	m.says("penstock backup /srv/refused 2>&1 || true", "backup-path")
	m.says("ps -o user= -C penstock", "penstock")
	m.says("penstock version", "penstock "+oldVersion)
	m.says("engine version", "penstock "+oldVersion) // the old name
	m.checkStorage()

	m.run("echo '" + changed + "' >>/etc/penstock/penstock.toml")
	m.watchdog()
	m.upgrade("dpkg -i " + deb(newVersion))
	m.removeAndPurge()
	m.archive()
}

// archive: without a package, the archive's own files are enough for a node that stays.
func (m *machine) archive() {
	m.run("tar -xzf /packages/" + newVersion + "/penstock-" + newVersion + "-linux-amd64.tar.gz -C /usr/local " +
		"--strip-components=1 && systemd-sysusers && systemctl daemon-reload && systemctl enable --now penstock")
	m.says("systemctl is-active penstock", "active")
	m.says("/usr/local/bin/penstock cluster health", "healthy")
	m.says("ps -o args= -C penstock", "/usr/local/bin/penstock serve --config /usr/local/etc/penstock/penstock.toml")
}

// checkStorage fails if the sandbox of the unit keeps the node from what it can do outside of it.
func (m *machine) checkStorage() {
	m.t.Helper()
	info := func(address string) string {
		out := m.run("curl -s http://" + address + "/info")
		return regexp.MustCompile(`"io_engine":.*"registered_buffers":\w+`).FindString(out)
	}
	inside := info("127.0.0.1:4151")
	m.run("setpriv --reuid=penstock --regid=penstock --clear-groups sh -c '" +
		"mkdir /var/lib/penstock/free; ulimit -l unlimited; exec penstock serve --data-path /var/lib/penstock/free " +
		"--nsq-address 127.0.0.1:14150 --http-address 127.0.0.1:14151 --lookup-address off' >/root/free.log 2>&1 & " +
		"echo $! >/root/free.pid")
	m.await("a node without the unit runs", func() bool {
		_, err := m.try("curl -sf http://127.0.0.1:14151/readyz")
		return err == nil
	})
	outside := info("127.0.0.1:14151")
	m.run("kill $(cat /root/free.pid); rm -rf /var/lib/penstock/free")
	m.t.Logf("storage in the unit: %s", inside)
	if inside == "" || inside != outside {
		m.t.Errorf("storage in the unit %s, and without it %s", inside, outside)
	}
}

// watchdog: a node that lives is left alone, and one that hangs is started again.
func (m *machine) watchdog() {
	m.run("mkdir -p /etc/systemd/system/penstock.service.d; printf '[Service]\\nWatchdogSec=2s\\nRestartSec=100ms\\n" +
		"TimeoutAbortSec=2s\\n' >/etc/systemd/system/penstock.service.d/test.conf; systemctl daemon-reload; " +
		"systemctl restart penstock")
	show := func(property string) string {
		return strings.TrimSpace(m.run("systemctl show --value -p " + property + " penstock"))
	}
	pings := map[string]bool{}
	m.await("ten pings of the watchdog", func() bool {
		pings[show("WatchdogTimestampMonotonic")] = true
		return len(pings) > 10
	})
	if n := show("NRestarts"); n != "0" {
		m.t.Errorf("systemd has started a healthy node %s times anew", n)
	}
	m.run("kill -STOP " + show("MainPID"))
	m.await("the node that hangs is started again", func() bool {
		return show("NRestarts") != "0" && show("ActiveState") == "active"
	})
	m.run("rm -r /etc/systemd/system/penstock.service.d; systemctl daemon-reload; systemctl restart penstock")
}

// upgrade: the new package restarts the node under load; nothing that was answered OK is lost, and settings stay.
func (m *machine) upgrade(install string) {
	l := m.startLoad()
	defer func() { l.stop.Store(true); <-l.ended }()
	m.await("messages are stored", func() bool { return l.count() > 200 })
	before := strings.TrimSpace(m.run("systemctl show --value -p MainPID penstock"))
	m.run(install)
	if after := strings.TrimSpace(m.run("systemctl show --value -p MainPID penstock")); after == before || after == "0" {
		m.t.Errorf("the process was %s and is %s after the upgrade", before, after)
	}
	m.says("curl -s http://127.0.0.1:4151/info", "+engine."+newVersion)
	m.says("cat /etc/penstock/penstock.toml", changed)
	m.says("journalctl -u penstock", "msg=stopped") // in order
	count := l.count()
	m.await("messages are stored by the new version", func() bool { return l.count() > count+200 })
	l.stop.Store(true)
	<-l.ended
	m.stored(l)
	m.t.Logf("%d answered OK, %d refused", l.count(), l.refused)
}

// removeAndPurge: messages go only when the administrator says so.
func (m *machine) removeAndPurge() {
	kept := func(after string) {
		m.t.Helper()
		if out, err := m.try("ls /var/lib/penstock/clog* /var/lib/penstock/node.json"); err != nil {
			m.t.Errorf("after %s the messages are gone: %s", after, out)
		}
	}
	m.run("dpkg --remove penstock")
	m.says("systemctl is-active penstock", "inactive")
	m.says("cat /etc/penstock/penstock.toml", changed)
	kept("remove")
	m.run("dpkg --purge penstock")
	kept("a purge that nobody could answer")
	m.says("ls /etc/penstock 2>&1", "No such file")

	m.run("dpkg -i " + deb(newVersion) + "; systemctl start penstock")
	m.says("penstock read orders --from oldest | tail -n 1", "message 0")
	ask := func(answer string) string {
		return m.run("echo " + answer + ` | script -qec "DEBIAN_FRONTEND=teletype dpkg --purge penstock" /dev/null`)
	}
	if out := ask("no"); !strings.Contains(out, "Remove all messages in /var/lib/penstock?") {
		m.t.Errorf("purging does not ask:\n%s", out)
	}
	kept("a purge with the answer no")
	m.run("dpkg -i " + deb(newVersion))
	ask("yes")
	m.says("ls /var/lib/penstock 2>&1", "No such file")

	m.run("dpkg -i " + deb(newVersion) + "; systemctl start penstock")
	const removeData = "echo penstock penstock/remove-data boolean true | debconf-set-selections; "
	m.run(removeData + "dpkg --purge penstock")
	m.says("ls /var/lib/penstock 2>&1", "No such file")

	// A file system of its own: its root cannot be removed, and the purge succeeds all the same.
	m.run("mkdir /var/lib/penstock; mount -t tmpfs messages /var/lib/penstock; chown penstock /var/lib/penstock; " +
		"dpkg -i " + deb(newVersion) + "; systemctl start penstock")
	m.run("ls /var/lib/penstock/LOCK; " + removeData + "dpkg --purge penstock")
	m.says("ls -A /var/lib/penstock | wc -l", "0\n")
}
