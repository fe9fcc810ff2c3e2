package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	metadataFile = "nsqd.dat"

	// maxMetadataBytes bounds nsqd.dat. It allows 200 bytes for each of 20,000 topics with 16 channels.
	maxMetadataBytes = 64 << 20
	maxNameBytes     = 64
)

// ephemeralSuffix marks topics and channels that nsqd keeps only in memory, and that have no files.
const ephemeralSuffix = "#ephemeral"

var validName = regexp.MustCompile(`^[.a-zA-Z0-9_-]+$`)

// metadata is the part of nsqd.dat that an import needs.
type metadata struct {
	Version string          `json:"version"`
	Topics  []topicMetadata `json:"topics"`
}

type topicMetadata struct {
	Name     string            `json:"name"`
	Paused   bool              `json:"paused"`
	Channels []channelMetadata `json:"channels"`
}

type channelMetadata struct {
	Name   string `json:"name"`
	Paused bool   `json:"paused"`
}

// parseMetadata parses nsqd.dat. Names that nsqd would refuse are left out and returned in refused, since they would
// become file names. Ephemeral names are left out silently, as nsqd does. Topics and channels are sorted by name.
func parseMetadata(data []byte) (m metadata, refused []string, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return metadata{}, nil, fmt.Errorf("migrate: %s is not nsqd's JSON: %w", metadataFile, err)
	}
	keep := func(name string) bool {
		if ephemeral(name) {
			return false
		}
		if !usableName(name) {
			refused = append(refused, name)
			return false
		}
		return true
	}
	m.Topics = slices.DeleteFunc(m.Topics, func(t topicMetadata) bool { return !keep(t.Name) })
	slices.SortStableFunc(m.Topics, func(a, b topicMetadata) int { return strings.Compare(a.Name, b.Name) })
	m.Topics = slices.CompactFunc(m.Topics, func(a, b topicMetadata) bool { return a.Name == b.Name })
	for i := range m.Topics {
		t := &m.Topics[i]
		t.Channels = slices.DeleteFunc(t.Channels, func(c channelMetadata) bool { return !keep(c.Name) })
		slices.SortStableFunc(t.Channels, func(a, b channelMetadata) int { return strings.Compare(a.Name, b.Name) })
		t.Channels = slices.CompactFunc(t.Channels, func(a, b channelMetadata) bool { return a.Name == b.Name })
	}
	return m, refused, nil
}

func usableName(name string) bool { return len(name) <= maxNameBytes && validName.MatchString(name) }

func ephemeral(name string) bool {
	stem, ok := strings.CutSuffix(name, ephemeralSuffix)
	return ok && usableName(stem)
}

// readMetadata reads nsqd.dat; found is false if there is none.
func readMetadata(root *os.Root) (m metadata, refused []string, found bool, err error) {
	data, err := readBounded(root, metadataFile, maxMetadataBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return metadata{}, nil, false, nil
	}
	if err != nil {
		return metadata{}, nil, true, fmt.Errorf("migrate: %s cannot be read: %w", metadataFile, err)
	}
	m, refused, err = parseMetadata(data)
	return m, refused, true, err
}

func readBounded(root *os.Root, name string, most int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return data, err
}
