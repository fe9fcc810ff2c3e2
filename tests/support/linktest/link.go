package linktest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The addresses of the two hosts. Each link has namespaces of its own, so they never collide.
const (
	ServerIP = "10.77.0.1"
	ClientIP = "10.77.0.2"
)

// Link is a pair of hosts. A socket belongs for ever to the host on which it was made, so server and client can live in
// the process of the test. Its methods may be called by the test's goroutines, one at a time.
type Link struct {
	t              testing.TB
	server, client string
}

// New makes a link on which the server's host sends at most bytesPerSecond. It ends with the test, which is skipped
// where the machine cannot do this.
func New(t testing.TB, bytesPerSecond int) *Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a slow link needs network namespaces, and those need root")
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("a slow link needs iproute2: %v", err)
		}
	}
	name := fmt.Sprintf("link%08x", rand.Uint32())
	l := &Link{t: t, server: name + "s", client: name + "c"}
	for _, ns := range []string{l.server, l.client} {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("this machine has no network namespaces: %v: %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	}
	l.run("ip link add eth0 netns " + l.server + " type veth peer name eth0 netns " + l.client)
	for ns, ip := range map[string]string{l.server: ServerIP, l.client: ClientIP} {
		l.run("ip -n " + ns + " addr add " + ip + "/24 dev eth0")
		l.run("ip -n " + ns + " link set lo up")
		l.run("ip -n " + ns + " link set eth0 up")
	}
	rate := fmt.Sprintf("rate %dbit burst 3kb limit 128kb", 8*bytesPerSecond)
	args := strings.Fields("-n " + l.server + " qdisc add dev eth0 root tbf " + rate)
	if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
		t.Skipf("this machine's kernel has no token bucket filter: %v: %s", err, out)
	}
	return l
}

func (l *Link) run(command string) {
	l.t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// OnServer runs f on the server's host: the sockets that f makes on its own goroutine are of that host.
func (l *Link) OnServer(f func()) { l.on(l.server, f) }

func (l *Link) on(namespace string, f func()) {
	l.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := os.Open("/var/run/netns/" + namespace)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		l.t.Fatalf("network namespace %s: %v", namespace, err)
	}
}

// Dial connects from the client's host.
func (l *Link) Dial(address string) (nc net.Conn, err error) {
	l.on(l.client, func() { nc, err = net.Dial("tcp", address) })
	return nc, err
}
