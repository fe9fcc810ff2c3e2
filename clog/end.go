package clog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/uuid"

	"penstock/segment/aio"
)

// End returns the number of the last group of the store's log: no recovery finds a later one. It reads the newest file
// that has groups, and changes nothing. An embedded etcd member calls it before the engine recovers the log. known is
// false in two cases, about which only recovery can decide: a group of that file is damaged, or the log ends before
// what log.mark says.
func End(disk aio.Disk, store uuid.UUID) (seq uint64, known bool, err error) {
	mark, state, _, err := readLogMark(disk, store)
	if err != nil || state != markValid {
		return 0, false, err
	}
	infos, err := disk.ReadDir(dirName)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("clog: listing the log's folder: %w", err)
	}
	var files []FileInfo
	for _, info := range infos {
		if number, ok := parseName(info.Name()); ok {
			files = append(files, FileInfo{Name: fileName(number), Number: number, SizeBytes: info.Size()})
		}
	}
	slices.SortFunc(files, func(a, b FileInfo) int { return cmp.Compare(b.Number, a.Number) })
	for _, file := range files {
		damaged := false
		s := scanner{win: window{block: int64(disk.Info().BlockBytes)}, file: file}
		s.visit = func(_ FileInfo, g GroupInfo, _ []RecordInfo) error {
			damaged = damaged || g.Err != nil
			if g.Err == nil && g.Store == store {
				seq = max(seq, g.Seq)
			}
			return nil
		}
		f, err := disk.Open(file.Name)
		if err != nil {
			return 0, false, fmt.Errorf("clog: opening %s: %w", file.Name, err)
		}
		if err := errors.Join(s.walk(f), f.Close()); err != nil || damaged {
			return 0, false, err
		}
		if seq > 0 {
			return seq, file.Number >= mark.File && seq >= mark.Seq, nil
		}
	}
	return 0, false, nil
}
