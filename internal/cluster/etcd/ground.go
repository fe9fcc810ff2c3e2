package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

// A member reads its database through a mapping. If the file gets shorter, the next access ends the process with a
// fault, on a goroutine of etcd's, where nobody can recover from it. If the database or the log is removed, etcd
// notices nothing and writes to files without a name. So a member's files are watched while it runs, and whoever finds
// one of them gone or cut first should be watchGround, which ends the process with a sentence (MemberOptions.Fatal).
// What it loses the race for is found by etcd (lastHook) or by the next start (checkFiles). So are bytes of the log
// that were overwritten in place: etcd writes there itself, and only reading the whole log would tell. That the oldest
// files of the log are gone tells nothing, as etcd removes them itself.

// groundEvery is how often a member looks if the kernel tells it nothing.
const groundEvery = time.Second

// watchGround runs on its own goroutine from when etcd runs until it stops. The kernel tells it of changes.
func (m *Member) watchGround(ctx context.Context, server *embed.Etcd) {
	stopped := server.Server.StopNotify()
	told := m.notices(ctx, stopped)
	tick := time.NewTicker(groundEvery)
	defer tick.Stop()
	g := ground{dir: filepath.Join(m.o.Dir, memberDir)}
	for {
		if found := g.look(); found != nil && ctx.Err() == nil {
			m.o.Fatal(m.o.damaged(found))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-stopped:
			return
		case <-told:
		case <-tick.C:
		}
	}
}

// notices returns a channel that gets a value after the database was written or cut, or a file of the member has lost
// its name. Without the kernel's help, of which each user has a limited share, nothing comes.
func (m *Member) notices(ctx context.Context, stopped <-chan struct{}) <-chan struct{} {
	told := make(chan struct{}, 1)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		m.o.Log.Debug("changes of the embedded etcd's files are not told", "error", err)
		return told
	}
	const gone = unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	for sub, events := range map[string]uint32{"snap": gone | unix.IN_MODIFY, "wal": gone} {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(m.o.Dir, memberDir, sub), events); err != nil {
			m.o.Log.Debug("changes of the embedded etcd's files are not told", "directory", sub, "error", err)
		}
	}
	f := os.NewFile(uintptr(fd), "inotify")
	go func() {
		select {
		case <-ctx.Done():
		case <-stopped:
		}
		_ = f.Close() // ends the reads
	}()
	go func() {
		buf := make([]byte, 4096) // what happened does not matter
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	return told
}

// ground is what is known of the files of a running member. One goroutine uses it.
type ground struct {
	dir  string      // with the folders snap and wal
	log  string      // the newest file of the log at the last look
	info fs.FileInfo // of it
}

// look says what is missing of the database or of the log; nil: nothing, or it cannot be told just now.
func (g *ground) look() error {
	db := filepath.Join(g.dir, "snap", "db")
	if err := checkWhole(db); err != nil {
		return fmt.Errorf("the database %s was damaged while it was in use: %w", db, err)
	}
	return g.lookAtLog()
}

func (g *ground) lookAtLog() error {
	wal := filepath.Join(g.dir, "wal")
	names, err := logNames(wal)
	if err != nil {
		return nil
	}
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("the log in %s was damaged while it was in use: %s", wal, fmt.Sprintf(format, args...))
	}
	newest := ""
	if len(names) > 0 {
		newest = names[len(names)-1]
	}
	if newest == "" || newest < g.log {
		return damaged("its newest file was removed")
	}
	for i := 1; i < len(names); i++ {
		// etcd removes the oldest file first: what is older than a file that it has removed is gone, too.
		before, after := logNumber(names[i-1]), logNumber(names[i])
		if _, err := os.Stat(filepath.Join(wal, names[i-1])); before+1 < after && err == nil {
			return damaged("of its files that begin with %016x to %016x none is left", before+1, after-1)
		}
	}
	info, err := os.Stat(filepath.Join(wal, newest))
	switch {
	case err != nil:
		return nil
	case newest == g.log && !os.SameFile(info, g.info):
		return damaged("%s was replaced by another file", newest)
	case newest == g.log && info.Size() < g.info.Size(): // etcd makes each as long as it will be
		return damaged("%s had %d bytes and has %d", newest, g.info.Size(), info.Size())
	}
	g.log, g.info = newest, info
	return nil
}

// logNames returns the names of the files of a log, the oldest first.
func logNames(dir string) (names []string, err error) {
	files, err := os.ReadDir(dir) // in their order
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) == ".wal" {
			names = append(names, f.Name())
		}
	}
	return names, nil
}

// logNumber returns the number of a file of a log, with which its name begins: each file has the next one.
func logNumber(name string) (n uint64) {
	_, _ = fmt.Sscanf(name, "%16x-", &n)
	return n
}

// checkWhole says whether a database that is in use lacks its beginning or its end. It is lengthened before it is
// written, and defragmentation renames a whole one over it.
func checkWhole(file string) error {
	f, err := os.Open(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it was removed")
	case err != nil:
		return nil
	}
	defer f.Close()
	pages := make([]byte, 2*os.Getpagesize())
	var need int64
	for i := 0; need == 0 && i < 2; i++ { // again, as a page may be read while it is written
		n, err := f.ReadAt(pages, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil
		}
		need = needs(pages[:n], os.Getpagesize())
	}
	info, err := f.Stat() // after the pages, as it only grows
	switch {
	case err != nil:
		return nil
	case need == 0:
		return errors.New("it does not begin with the header of a database")
	case info.Size() < need:
		return fmt.Errorf("it needs %d bytes and has %d", need, info.Size())
	}
	return nil
}

// The first two pages of a database are its metas, written in turns: one of them is always whole. A page has a header
// of 16 bytes. See meta in bbolt's package common.
const (
	metaAt       = 16
	metaSumAt    = 56 // behind the fields that it is about
	metaBytes    = 64
	metaMagic    = 0xED0CDAED
	metaPageSize = 8
	metaHigh     = 40 // the number of the first page that was never used
	metaTxid     = 48
)

// needs returns how long a database has to be by its newest meta; 0: it has none.
func needs(pages []byte, pageSize int) (bytes int64) {
	var newest uint64
	for at := metaAt; at+metaBytes <= len(pages); at += pageSize {
		meta := pages[at : at+metaBytes]
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:metaSumAt])
		if binary.NativeEndian.Uint32(meta) != metaMagic || binary.NativeEndian.Uint64(meta[metaSumAt:]) != sum.Sum64() {
			continue
		}
		if txid := binary.NativeEndian.Uint64(meta[metaTxid:]); bytes == 0 || txid > newest {
			newest = txid
			high := binary.NativeEndian.Uint64(meta[metaHigh:])
			bytes = int64(high) * int64(binary.NativeEndian.Uint32(meta[metaPageSize:]))
		}
	}
	return bytes
}
