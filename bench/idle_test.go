package bench

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkIdleConnections is what 10,000 connections cost that do nothing but answer heartbeats: half are consumers of
// a hundred topics, half have only introduced themselves.
func BenchmarkIdleConnections(b *testing.B) {
	const connections, watched = 10_000, 20 * time.Second
	n := startNode(b, b.TempDir())
	var clients sync.WaitGroup
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
		clients.Wait()
	}()
	for i := range connections {
		c, err := net.Dial("tcp", n.nsq)
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, c)
		hello := `{"client_id":"idle","heartbeat_interval":30000}`
		in := append([]byte("  V2IDENTIFY\n"), binary.BigEndian.AppendUint32(nil, uint32(len(hello)))...)
		in = append(in, hello...)
		if i%2 == 0 {
			in = append(in, fmt.Sprintf("SUB t%d c\nRDY 10\n", i%200)...)
		}
		if _, err := c.Write(in); err != nil {
			b.Fatal(err)
		}
		clients.Go(func() { answerHeartbeats(c) })
	}
	time.Sleep(5 * time.Second) // all have subscribed, and what that needed has been collected
	before := cpuTimeOf(b, n.cmd.Process.Pid)
	time.Sleep(watched)
	used := cpuTimeOf(b, n.cmd.Process.Pid) - before
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(residentMiB(b, n.cmd.Process.Pid), "MiB-resident")
	b.ReportMetric(100*used.Seconds()/watched.Seconds(), "%-of-a-core")
}

// answerHeartbeats reads frames until the connection ends.
func answerHeartbeats(c net.Conn) {
	var size [4]byte
	frame := make([]byte, 1<<10)
	for {
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		f := frame[:binary.BigEndian.Uint32(size[:])]
		if _, err := io.ReadFull(c, f); err != nil {
			return
		}
		if string(f[4:]) == "_heartbeat_" {
			if _, err := io.WriteString(c, "NOP\n"); err != nil {
				return
			}
		}
	}
}

// cpuTimeOf is what a process has used of all processors, to 10 ms (proc_pid_stat(5): fields 14 and 15, in hundredths).
func cpuTimeOf(b testing.TB, pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
