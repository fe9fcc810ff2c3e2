//go:build packages

package main

import (
	"fmt"
	"strings"
	"testing"
)

func rpm(version string) string {
	return fmt.Sprintf("/packages/%s/penstock-%s-1.x86_64.rpm", version, version)
}

// An rpm's life. Debian's rpm knows nothing of what dpkg has installed, so dependencies are left out.
func TestRPM(t *testing.T) {
	m := boot(t, dist)
	if _, err := m.try("command -v rpm"); err != nil {
		t.Skip("not run: there is no rpm (apt-get install rpm)")
	}
	const install = "rpm --force-debian --nodeps --nosignature "
	m.run(install + "-i " + rpm(oldVersion))
	m.says("rpm -q --requires penstock", "/usr/sbin/useradd")
	m.says("rpm -V --nodeps penstock && echo unchanged", "unchanged")
	m.says("systemctl is-enabled penstock; systemctl is-active penstock", "disabled\ninactive")
	m.says("stat -c '%U:%G %a' /var/lib/penstock /etc/penstock /etc/penstock/penstock.toml",
		"penstock:penstock 750\nroot:penstock 750\nroot:penstock 640\n")
	m.run("systemctl enable --now penstock; echo '" + changed + "' >>/etc/penstock/penstock.toml")
	m.upgrade(install + "-U " + rpm(newVersion))
	m.run("rpm --force-debian -e penstock")
	m.says("systemctl is-active penstock", "inactive")
	m.run("ls /var/lib/penstock/node.json")
	m.says("cat /etc/penstock/penstock.toml*", changed) // rpm renames settings that were changed
}

// In a container no systemd runs, and its programs may be missing: the package installs, upgrades and goes nonetheless.
func TestWithoutSystemd(t *testing.T) {
	m := boot(t, dist)
	without := func(script string) string {
		return m.run("unshare --mount sh -ec 'mount -t tmpfs none /run/systemd; " +
			"mount --bind /dev/null /usr/bin/systemd-sysusers; " + script + "'")
	}
	without("dpkg -i " + deb(oldVersion))
	m.says("stat -c '%U:%G %a' /var/lib/penstock /etc/penstock/penstock.toml",
		"penstock:penstock 750\nroot:penstock 640\n")
	m.run("setpriv --reuid=penstock --regid=penstock --clear-groups penstock serve --config /etc/penstock/penstock.toml " +
		">/root/log 2>&1 & echo $! >/root/pid")
	m.await("the node is ready", func() bool {
		_, err := m.try("curl -sf http://127.0.0.1:4151/readyz")
		return err == nil
	})
	m.says("curl -sd hello 'http://127.0.0.1:4151/pub?topic=orders'", "OK")
	without("dpkg -i " + deb(newVersion))
	m.says("penstock read orders --from oldest", "hello") // the process goes on
	without("echo penstock penstock/remove-data boolean true | debconf-set-selections; dpkg --purge penstock")
	m.says("curl -sd hello 'http://127.0.0.1:4151/pub?topic=orders'", "OK") // what a process has open stays
	m.run("kill $(cat /root/pid); ls /var/lib/penstock/node.json")
}

// The commands of docs/operate/packages.md work, in their order.
func TestDocument(t *testing.T) {
	text, _, _ := strings.Cut(readFile(t, "../docs/operate/packages.md"), "\n## Containers") // which TestImage builds
	m := boot(t, dist)
	ran := 0
	for block := range strings.SplitSeq(text, "```console\n") {
		block, _, fenced := strings.Cut(block, "```")
		for line := range strings.Lines(block) {
			if command, ok := strings.CutPrefix(line, "$ "); ok && fenced {
				t.Logf("%s%s", command, m.run("cd /packages/"+newVersion+"; "+command))
				ran++
			}
		}
	}
	if ran < 10 {
		t.Errorf("docs/operate/packages.md has only %d commands", ran)
	}
}
