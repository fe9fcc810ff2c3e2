package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// StateFile is the name of the record of imports in a target's data directory.
const StateFile = "nsqd-import.json"

// maxStateBytes bounds the size of the record when it is read.
const maxStateBytes = 256 << 20

// ErrChanged says that an nsqd has worked in the directory since it was imported.
var ErrChanged = errors.New("migrate: an nsqd has worked in the directory since it was imported")

// State is the record of imports into one target. It prevents a second run from importing anything twice. It is one
// small JSON file, which is replaced as a whole after each step. It must be used by one goroutine only.
type State struct {
	path    string
	Imports []*record `json:"imports"`
}

// record is the progress of importing one source.
type record struct {
	Source      string                 `json:"source"`
	Fingerprint string                 `json:"fingerprint"`
	Done        bool                   `json:"done"`
	Topics      map[string]*topicState `json:"topics"`
}

// step is the progress of one topic. A step is recorded only when the effects of the previous one are on stable
// storage.
type step string

const (
	stepBegin   step = "begin"   // the topic is being created
	stepPublish step = "publish" // the channels' messages are being published
	stepConfirm step = "confirm" // the messages that a channel did not have are being confirmed for it
	stepTopic   step = "topic"   // the topic's own messages are being published
	stepDone    step = "done"
)

// topicState is the state of a topic that an import needs to continue after a crash.
type topicState struct {
	Step      step     `json:"step"`
	New       bool     `json:"new"`                // the topic did not exist in the target
	Existing  []string `json:"existing,omitempty"` // channels that the target had before
	Base      int64    `json:"base"`               // number of messages waiting in the target when the step began
	Published int64    `json:"published"`          // in this step; ignored for an exclusive target, which counts itself
	// First is the id of the first message that stepPublish published. It is set from stepConfirm on.
	First uint64 `json:"first"`
}

// LoadState reads the record at path. If there is none, the result is empty.
func LoadState(path string) (*State, error) {
	s := &State{path: path}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil && st.Size() > maxStateBytes {
		err = fmt.Errorf("it has more than %d bytes", maxStateBytes)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err != nil {
		return nil, fmt.Errorf("migrate: the record of imports %s cannot be read, so that nobody knows what was imported: %w",
			path, err)
	}
	return s, nil
}

// Imported reports whether the directory at source was imported completely.
func (s *State) Imported(source string) bool {
	for _, r := range s.Imports {
		if r.Source == source && r.Done {
			return true
		}
	}
	return false
}

// record finds the record for a source, or adds a new one. again allows importing a directory once more in which an
// nsqd has worked since.
func (s *State) record(source, fingerprint string, again bool) (*record, error) {
	for _, r := range s.Imports {
		if r.Fingerprint == fingerprint {
			return r, nil
		}
	}
	for _, r := range s.Imports {
		if r.Source == source && !again {
			return nil, fmt.Errorf("%w (%s, recorded in %s): what is left in it may have been imported then; --again imports "+
				"all of it", ErrChanged, source, s.path)
		}
	}
	r := &record{Source: source, Fingerprint: fingerprint, Topics: map[string]*topicState{}}
	s.Imports = append(s.Imports, r)
	return r, nil
}

// save replaces the file. When it returns nil, the new contents are on stable storage.
func (s *State) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(s.path, data); err != nil {
		return fmt.Errorf(
			"migrate: the record of imports cannot be written, and without it a second run would import twice: %w", err)
	}
	return nil
}

func replaceFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync())
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
