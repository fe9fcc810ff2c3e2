package bench

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkManyTopics is what a node costs that has as many topics as max-topics allows, of one partition and three
// messages of 100 bytes each: how fast they are made and filled, the disk that each of them takes, descriptors and
// memory of the process, and how long a start takes after a kill and after an orderly stop. TEST_TOPICS sets
// another number of topics.
func BenchmarkManyTopics(b *testing.B) {
	const workers, messages = 16, 3
	topics := 20_000
	if s := os.Getenv("TEST_TOPICS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		topics = n
	}
	dir := b.TempDir()
	n := startNode(b, dir)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	var most atomic.Int64
	post := func(path, body string) {
		reply, err := client.Post("http://"+n.http+path, "", strings.NewReader(body))
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, reply.Body)
		_ = reply.Body.Close()
		if reply.StatusCode != http.StatusOK {
			b.Errorf("%s: %s", path, reply.Status)
		}
	}
	each := func(do func(topic int)) (perSecond float64) {
		began := time.Now()
		var next atomic.Int64
		var group sync.WaitGroup
		for range workers {
			group.Go(func() {
				for i := int(next.Add(1)); i <= topics && !b.Failed(); i = int(next.Add(1)) {
					if do(i); i%500 == 0 {
						most.Store(max(most.Load(), openFiles(b, n.cmd.Process.Pid)))
					}
				}
			})
		}
		group.Wait()
		return float64(topics) / time.Since(began).Seconds()
	}
	body := strings.Repeat("x", 100)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(each(func(i int) { post(fmt.Sprintf("/topic/create?topic=t%d", i), "") }), "topics/s")
	b.ReportMetric(messages*each(func(i int) {
		for range messages {
			post(fmt.Sprintf("/pub?topic=t%d", i), body)
		}
	}), "msg/s")
	b.ReportMetric(residentMiB(b, n.cmd.Process.Pid), "MiB")
	restart := func(signal syscall.Signal) time.Duration {
		client.CloseIdleConnections()
		_ = n.cmd.Process.Signal(signal)
		_ = n.cmd.Wait()
		began := time.Now()
		n = startNode(b, dir)
		return time.Since(began)
	}
	b.ReportMetric(restart(syscall.SIGKILL).Seconds(), "s-after-kill")
	b.ReportMetric(restart(syscall.SIGTERM).Seconds(), "s-after-stop")
	most.Store(max(most.Load(), openFiles(b, n.cmd.Process.Pid)))
	b.ReportMetric(restart(syscall.SIGTERM).Seconds(), "s-again")
	b.ReportMetric(residentMiB(b, n.cmd.Process.Pid), "MiB-again")
	b.ReportMetric(float64(most.Load()), "files")
	b.ReportMetric(float64(diskBytes(b, filepath.Join(dir, "topics")))/1024/float64(topics), "KiB/topic")
}

// openFiles is how many descriptors a process has.
func openFiles(b *testing.B, pid int) int64 {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		b.Error(err)
	}
	return int64(len(entries))
}

// diskBytes is what the blocks of a directory tree take, as du counts it.
func diskBytes(b *testing.B, dir string) (sum int64) {
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		sum += st.Blocks * 512
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return sum
}
