package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// commit is what the device itself takes for one durable 4 KiB write, with nothing else going on.
type commit struct {
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
}

const (
	commitBytes  = 4096
	commitFile   = 8 << 20 // it is written once before, so that no write allocates blocks
	commitWrites = 2000
)

// measureCommit writes 4 KiB after 4 KiB into a file that has its blocks already, each write with O_DIRECT and O_DSYNC.
func measureCommit(dir string) (commit, error) {
	path := filepath.Join(dir, "commit")
	defer os.Remove(path)
	if err := os.WriteFile(path, make([]byte, commitFile), 0o600); err != nil {
		return commit{}, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0)
	if err != nil {
		return commit{}, fmt.Errorf("the directory's file system has no O_DIRECT: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return commit{}, err
	}
	// A mapping begins at a page, as O_DIRECT wants it.
	buf, err := unix.Mmap(-1, 0, commitBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return commit{}, err
	}
	defer func() { _ = unix.Munmap(buf) }()
	took := make([]float64, 0, commitWrites)
	for i := range commitWrites {
		start := time.Now()
		if _, err := unix.Pwrite(fd, buf, int64(i)*commitBytes%commitFile); err != nil {
			return commit{}, err
		}
		took = append(took, micros(time.Since(start)))
	}
	slices.Sort(took)
	return commit{P50: took[len(took)/2], P99: took[len(took)*99/100]}, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// settle writes what the file system still holds back, so that one server's unwritten data do not burden the next one.
func settle(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// processors names the processors as /proc/cpuinfo does, and the kernel.
func machine() (processors, kernel string) {
	processors, kernel = "unknown", "unknown"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		n := strings.Count("\n"+string(text), "\nprocessor\t")
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				processors = fmt.Sprintf("%d × %s", n, strings.TrimSpace(value))
				break
			}
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return processors, kernel
}
