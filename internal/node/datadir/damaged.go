package datadir

import (
	"errors"
	"io/fs"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
)

// DamagedFile lists places of segments that do not read back, as a restore found them that took the rest of a backup. A
// node reads these places when it starts, so that it knows the damage before it serves or leads anything. When all of
// them read back, it removes the file. A version that does not know the file meets the damage when it reads there.
const DamagedFile = "damaged.json"

// maxDamagedBytes bounds the size of the file. A place takes about 100 bytes.
const maxDamagedBytes = 64 << 20

// DamagedPlace is where a batch begins that does not verify.
type DamagedPlace struct {
	segment.Identity
	From segment.Offset
}

// Damaged is the content of DamagedFile.
type Damaged struct {
	Places []damagedRow `json:"places"`
}

type damagedRow struct {
	Topic     uuid.UUID      `json:"topic"`
	Partition uint32         `json:"partition"`
	From      segment.Offset `json:"from"`
}

// NewDamaged returns the content of a file with these places.
func NewDamaged(places []DamagedPlace) *Damaged {
	d := new(Damaged)
	for _, p := range places {
		d.Places = append(d.Places, damagedRow{p.Topic, p.Partition, p.From})
	}
	return d
}

// ReadDamaged reads the places in the directory; nil: there is no such file.
func ReadDamaged(disk aio.Disk) (map[segment.Identity][]segment.Offset, error) {
	data, err := disk.ReadFile(DamagedFile, maxDamagedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	d := new(Damaged)
	if err == nil {
		err = UnsealFile(data, d, func() error { return nil })
	}
	if err != nil {
		return nil, err
	}
	places := map[segment.Identity][]segment.Offset{}
	for _, r := range d.Places {
		id := segment.Identity{Topic: r.Topic, Partition: r.Partition}
		places[id] = append(places[id], r.From)
	}
	return places, nil
}
