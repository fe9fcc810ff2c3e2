package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// MaxHosts bounds the hosts of a relay, the client's included: their addresses differ in the last byte.
const MaxHosts = 100

// Relay is a network and its forwarder. Benchmarks and tests use it. All methods are safe for concurrent use, except
// Close. A crash of the process takes all of it away; see the package.
type Relay struct {
	prefix [3]byte // of all addresses
	hosts  []host
	stop   int           // an eventfd that the forwarder polls
	delay  atomic.Int64  // of one direction, in ns
	ended  chan struct{} // closed when the forwarder has ended
	failed error         // why it has; valid once ended is closed
	stats  counters
}

// host is one end: a device in a namespace.
type host struct {
	tun       int // file of the device
	namespace int // file of the namespace; -1: this process's
}

// Missing says why this machine cannot have a relay; nil: it can.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("a relay between network namespaces needs root")
	}
	for _, tool := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("a relay between network namespaces needs %s", tool)
		}
	}
	r, err := New(2, 0)
	if err != nil {
		return err
	}
	return r.Close()
}

// New makes a network of that many hosts. Host 0 is in the namespace of this process.
func New(hosts int, roundTrip time.Duration) (*Relay, error) {
	if hosts < 2 || hosts > MaxHosts {
		return nil, fmt.Errorf("a relay of %d hosts: 2 to %d are possible", hosts, MaxHosts)
	}
	r := &Relay{
		prefix: [3]byte{10, byte(100 + rand.IntN(100)), byte(rand.IntN(200))},
		stop:   -1, ended: make(chan struct{}),
	}
	r.SetRoundTrip(roundTrip)
	if err := r.build(hosts); err != nil {
		r.closeFiles()
		return nil, err
	}
	go r.forward()
	return r, nil
}

func (r *Relay) build(hosts int) (err error) {
	if r.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	for i := range hosts {
		h := host{tun: -1, namespace: -1}
		if i > 0 {
			if h.namespace, err = newNamespace(); err != nil {
				return fmt.Errorf("a network namespace cannot be made: %w", err)
			}
		}
		r.hosts = append(r.hosts, h)
		if err := r.Within(i, func() error { return r.attach(i) }); err != nil {
			return fmt.Errorf("host %d of the relay: %w", i, err)
		}
	}
	return nil
}

// newNamespace returns the file of a new network namespace.
func newNamespace() (fd int, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// onThread runs do on a thread of its own, which ends afterwards: it may be in another namespace by then.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- do()
	}()
	return <-done
}

// attach makes the device of host i, in the namespace of the calling thread.
func (r *Relay) attach(i int) error {
	name := "eth0"
	if i == 0 { // this process's namespace has other devices
		name = fmt.Sprintf("pr%x", rand.Uint32()&0xfffffff)
	}
	fd, err := newDevice(name)
	if err != nil {
		return fmt.Errorf("the device %s cannot be made: %w", name, err)
	}
	r.hosts[i].tun = fd
	steps := []string{
		fmt.Sprintf("addr add %s/24 dev %s", r.Address(i), name),
		fmt.Sprintf("link set %s txqueuelen %d up", name, queuePackets),
	}
	if i > 0 {
		steps = append(steps, "link set lo up")
	}
	for _, s := range steps {
		if out, err := exec.Command("ip", strings.Fields(s)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", s, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// queuePackets is how many packets wait in a device until the forwarder takes them. More are lost, as in a card.
const queuePackets = 10_000

// newDevice makes a TUN device with the virtio header and TCP segmentation offload.
func newDevice(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// SetRoundTrip sets how long the relay keeps a packet and the answer to it together, from the next packet on.
func (r *Relay) SetRoundTrip(d time.Duration) { r.delay.Store(int64(d / 2)) }

// Address is the address of a host.
func (r *Relay) Address(host int) string {
	return fmt.Sprintf("%d.%d.%d.%d", r.prefix[0], r.prefix[1], r.prefix[2], firstAddress+host)
}

const firstAddress = 10 // last byte of the address of host 0

// Namespace is the path of a host's network namespace, as nsenter takes it, while this process lives.
func (r *Relay) Namespace(host int) string {
	if r.hosts[host].namespace < 0 {
		return fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.hosts[host].namespace)
}

// Within runs do on a thread in a host's namespace. Sockets that do opens stay there.
func (r *Relay) Within(host int, do func() error) error {
	if r.hosts[host].namespace < 0 {
		return do()
	}
	return onThread(func() error {
		if err := unix.Setns(r.hosts[host].namespace, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return do()
	})
}

// Close ends the forwarder, and takes devices and namespaces away. Processes in them have ended. The error says why the
// forwarder ended before.
func (r *Relay) Close() error {
	one := [8]byte{1}
	_, err := unix.Write(r.stop, one[:])
	<-r.ended
	r.closeFiles()
	return errors.Join(err, r.failed)
}

func (r *Relay) closeFiles() {
	for _, h := range r.hosts {
		for _, fd := range []int{h.tun, h.namespace} {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
	}
	if r.stop >= 0 {
		_ = unix.Close(r.stop)
	}
}
