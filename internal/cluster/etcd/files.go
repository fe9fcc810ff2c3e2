package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// etcd finds that its files are damaged while it runs, and panics, on goroutines of its own. So a member's files are
// read before it starts: the structure of the database, the checksums of the log, and whether the log reaches as far as
// what the database has. A log that is shorter was cut: its member has forgotten what it promised.

// dbLockWait bounds the wait for another process that has the database open.
const dbLockWait = 3 * time.Second

// checkFiles returns what is wrong with the files of a stopped member, with the name of the file; nil: nothing that is
// found by reading them. Files that are missing are nothing wrong: etcd says so.
func checkFiles(dir string) error {
	db := filepath.Join(dir, memberDir, "snap", "db")
	applied, err := checkDatabase(db)
	if err != nil {
		return fmt.Errorf("the database %s is damaged: %w", db, err)
	}
	logs := filepath.Join(dir, memberDir, "wal")
	last, err := checkLog(logs)
	switch {
	case err != nil:
		return fmt.Errorf("the log in %s is damaged: %w", logs, err)
	case last < applied:
		return fmt.Errorf("the log in %s ends with entry %d, and the database has entry %d: the log is damaged or older",
			logs, last, applied)
	}
	return nil
}

// checkDatabase reads all pages that hold rows, and returns the last entry of the log that is applied.
func checkDatabase(file string) (applied uint64, err error) {
	if _, err := os.Stat(file); err != nil {
		return 0, nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the file is mapped, and may be shorter than it says
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a page cannot be read (%v)", p)
		}
	}()
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{ReadOnly: true, Timeout: dbLockWait})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		if err := tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walk(b) }); err != nil {
			return err
		}
		for err := range tx.Check() { // without the walk it would panic
			return err
		}
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			for _, c := range meta.Get([]byte("consistent_index")) {
				applied = applied<<8 | uint64(c)
			}
		}
		return nil
	})
	return applied, err
}

func walk(b *bbolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if v == nil {
			if child := b.Bucket(k); child != nil {
				return walk(child)
			}
		}
		return nil
	})
}

// checkLog reads the log and returns its last entry. A write at its end that a power cut left
// incomplete is no damage.
func checkLog(dir string) (last uint64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a record cannot be read (%v)", p)
		}
	}()
	metadata, last, entries, err := readLog(dir)
	switch {
	case err != nil:
		return 0, err
	case metadata == nil:
		return 0, errors.New("it does not say whose it is")
	case len(entries) > 0:
		last = entries[len(entries)-1].GetIndex()
	}
	return last, nil
}

// readLog reads the log of a stopped member: whose it is, and the entries behind its newest snapshot, at index begin.
func readLog(dir string) (metadata []byte, begin uint64, entries []*raftpb.Entry, err error) {
	lg := zap.NewNop()
	snaps, err := wal.ValidSnapshotEntries(lg, dir)
	if err == nil && len(snaps) == 0 {
		err = errors.New("it has no beginning")
	}
	if err != nil {
		return nil, 0, nil, err
	}
	newest := snaps[len(snaps)-1]
	w, err := wal.OpenForRead(lg, dir, newest)
	if err != nil {
		return nil, 0, nil, err
	}
	defer w.Close()
	metadata, _, entries, err = w.ReadAll()
	return metadata, newest.GetIndex(), entries, err
}
