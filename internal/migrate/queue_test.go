package migrate

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestQueueRead(t *testing.T) {
	a, b, c, d := rec(1, "a"), rec(2, "bb"), rec(3, "ccc"), rec(4, "d")
	garbage := []byte{
		0x7f, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
		27,
	}
	for _, tc := range []struct {
		name   string
		files  map[int][]byte
		meta   string
		want   string
		damage []string // substrings, in order
		note   string
	}{
		{"clean", map[int][]byte{0: join(a, b), 1: join(c)}, "3\n0,0\n1,33\n", "a bb ccc", nil, ""},
		{"read position", map[int][]byte{2: join(a, b), 3: c}, "2\n2,31\n3,33\n", "bb ccc", nil, ""},
		{"consumed file left", map[int][]byte{1: a, 2: b}, "1\n2,0\n2,32\n", "bb", nil, ""},
		{"all read", map[int][]byte{2: join(a, b)}, "0\n2,63\n2,63\n", "", nil, ""},
		{"new and empty", nil, "0\n0,0\n0,0\n", "", nil, ""},
		{"old meta", map[int][]byte{0: join(a, b), 1: c}, "1\n0,0\n0,31\n", "a bb ccc", nil, ""},
		{"no meta", map[int][]byte{0: a, 1: b}, "", "a bb", nil, "is missing"},
		{"meta broken", map[int][]byte{0: a}, "1\n0;0\n0,31\n", "a", []string{"not three lines"}, ""},
		{"meta backwards", map[int][]byte{0: a}, "1\n5,0\n0,31\n", "a", []string{"behind its end"}, ""},
		{"torn tail", map[int][]byte{0: join(a, b[:20])}, "2\n0,0\n0,31\n", "a", []string{"too few"}, ""},
		{"torn body", map[int][]byte{0: join(a, c[:31])}, "2\n0,0\n0,31\n", "a", []string{"ends behind the file"}, ""},
		{"shorter than said", map[int][]byte{0: a}, "2\n0,0\n0,63\n", "a", []string{"says at least 63"}, ""},
		// B37
		{
			"garbage, next file goes on",
			map[int][]byte{0: join(a, garbage, b), 1: c},
			"4\n0,0\n1,33\n", "a ccc",
			[]string{"2147483647"},
			"",
		},
		{"zeros", map[int][]byte{0: join(a, make([]byte, 64))}, "1\n0,0\n0,95\n", "a", []string{"of 0 bytes cannot be"}, ""},
		{"empty body", map[int][]byte{0: join(rec(9, ""), d)}, "2\n0,0\n0,61\n", "d", []string{"empty"}, ""},
		{"gap", map[int][]byte{0: a, 3: d}, "4\n0,0\n3,31\n", "a d", []string{"2 file(s) are missing"}, ""},
		{"last file gone", map[int][]byte{0: a}, "2\n0,0\n1,31\n", "a", []string{"1 file(s) are missing"}, ""},
		{"first file gone", map[int][]byte{1: b}, "2\n0,0\n1,32\n", "bb", nil, "had consumed it"},
		{
			"far numbers",
			map[int][]byte{1: b},
			"2\n0,0\n9000000000000000000,32\n", "bb",
			[]string{"file(s) are missing"},
			"had consumed it",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, metadataFile, []byte(`{"topics":[{"name":"t"}]}`))
			for n, data := range tc.files {
				write(t, dir, fmt.Sprintf("t.diskqueue.%06d.dat", n), data)
			}
			if tc.meta != "" {
				write(t, dir, "t.diskqueue.meta.dat", []byte(tc.meta))
			}
			got, counts := bodies(t, open(t, dir, SourceOptions{}).Topics[0].Queue)
			if strings.Join(got, " ") != tc.want || counts.Messages != int64(len(got)) ||
				counts.Bytes != int64(len(strings.Join(got, ""))) {
				t.Errorf("read %q with %+v, want %q", got, counts, tc.want)
			}
			if len(counts.Damage) != len(tc.damage) {
				t.Fatalf("damage %v, want %q", counts.Damage, tc.damage)
			}
			for i, d := range counts.Damage {
				if !strings.Contains(d.String(), tc.damage[i]) {
					t.Errorf("damage %v, want %q", d, tc.damage[i])
				}
			}
			if tc.note != "" && !strings.Contains(strings.Join(counts.Notes, "\n"), tc.note) ||
				tc.note == "" && len(counts.Notes) > 0 {
				t.Errorf("notes %q, want %q", counts.Notes, tc.note)
			}
		})
	}
}

// The directories were made by nsqd 1.3.0; testdata/make.sh describes their contents.
func TestRealNSQD(t *testing.T) {
	numbers := func(prefix string, from, to int, without ...int) (all []string) {
		for i := from; i <= to; i++ {
			if !slices.Contains(without, i) {
				all = append(all, fmt.Sprintf("%s-%d", prefix, i))
			}
		}
		return all
	}
	want := map[string][]string{
		"clean alone": numbers("alone", 0, 9), "clean held": numbers("held", 0, 4), "clean held:late": nil,
		"clean orders": nil, "clean orders:audit": numbers("order", 0, 39, 5, 6, 7, 8, 9, 30),
		"clean orders:billing": numbers("order", 20, 39),
		"clean orders:idle":    nil, "clean quiet": nil, "clean quiet:stopped": numbers("quiet", 0, 2),
		"killed crash": numbers("crash", 26, 29), "killed crash:c": numbers("crash", 0, 29),
	}
	paused := []string{"held", "quiet:stopped"}
	for _, name := range []string{"clean", "killed"} {
		s := open(t, unpack(t, name), SourceOptions{})
		if s.Version != "1.3.0" || len(s.Unlisted) != 0 || len(s.Notes) != 0 {
			t.Errorf("%s: version %q, unlisted %v, notes %q", name, s.Version, s.Unlisted, s.Notes)
		}
		for _, q := range s.Queues() {
			got, counts := bodies(t, q)
			slices.Sort(got)
			expected := slices.Sorted(slices.Values(want[name+" "+q.name]))
			if !slices.Equal(got, expected) || len(counts.Damage) > 0 {
				t.Errorf("%s %s: %q, want %q; damage %v", name, q.name, got, expected, counts.Damage)
			}
			delete(want, name+" "+q.name)
		}
		for _, topic := range s.Topics {
			if topic.Paused != slices.Contains(paused, topic.Name) {
				t.Errorf("%s: paused is %v", topic.Name, topic.Paused)
			}
			for _, c := range topic.Channels {
				if c.Paused != slices.Contains(paused, c.Queue.name) {
					t.Errorf("%s: paused is %v", c.Queue.name, c.Paused)
				}
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
}

func TestFileNames(t *testing.T) {
	for _, tc := range []struct {
		name, queue string
		number      int64
		ok          bool
	}{
		{"t.diskqueue.000000.dat", "t", 0, true},
		{"t:c.diskqueue.000017.dat", "t:c", 17, true},
		{"t.diskqueue.1234567.dat", "t", 1234567, true},
		{"t.diskqueue.meta.dat", "t", -1, true},
		{"t.diskqueue.000001.dat.bad", "t", -2, true},
		{"a.diskqueue.000001.diskqueue.000002.dat", "a.diskqueue.000001", 2, true},
		{"t.diskqueue.01234567.dat", "", 0, false},
		{"t.diskqueue.12.dat", "", 0, false},
		{"t.diskqueue.meta.dat.123.tmp", "", 0, false},
		{"nsqd.dat", "", 0, false},
		{"t.diskqueue.-00001.dat", "", 0, false},
	} {
		queue, number, ok := splitFileName(tc.name)
		if ok != tc.ok || ok && (queue != tc.queue || number != tc.number) {
			t.Errorf("%s: %q %d %v", tc.name, queue, number, ok)
		}
	}
}

// Whatever the contents of a file, the records that are read are contiguous from its beginning to the damaged place, or
// to its end.
func FuzzQueueFile(f *testing.F) {
	f.Add(join(rec(1, "a"), rec(2, "bb")))
	f.Add(join(rec(1, "a"), []byte{0, 0, 0, 27, 1}))
	f.Add(make([]byte, 40))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		write(t, dir, "t.diskqueue.000000.dat", data)
		root, err := os.OpenRoot(dir)
		must(t, err)
		defer root.Close()
		q := &Queue{Topic: "t", name: "t", root: root, files: []int64{0}}
		var again []byte
		c, err := q.Read(func(m *Message) error {
			again = binary.BigEndian.AppendUint32(again, uint32(messageHeaderBytes+len(m.Body)))
			again = binary.BigEndian.AppendUint64(again, uint64(m.Timestamp))
			again = binary.BigEndian.AppendUint16(again, m.Attempts)
			again = append(again, m.ID[:]...)
			if m.offset != int64(len(again)) && !hasEmpty(data) {
				t.Fatalf("a body is at %d and was said to be at %d", len(again), m.offset)
			}
			again = append(again, m.Body...)
			return nil
		})
		must(t, err)
		if hasEmpty(data) {
			return // again does not have empty messages
		}
		end := int64(len(data))
		if len(c.Damage) > 0 {
			end = c.Damage[0].Offset
			if c.Damage[0].Bytes != int64(len(data))-end || len(c.Damage) > 1 {
				t.Fatalf("damage %v of a file of %d bytes", c.Damage, len(data))
			}
		}
		if string(again) != string(data[:end]) {
			t.Fatalf("read %x of %x", again, data)
		}
	})
}

// hasEmpty reports whether there is a record of an empty message, which is damage that does not end a file.
func hasEmpty(data []byte) bool {
	for len(data) >= recordHeaderBytes {
		n := int64(int32(binary.BigEndian.Uint32(data)))
		if n == messageHeaderBytes && len(data) >= recordHeaderBytes+messageHeaderBytes {
			return true
		}
		if n < messageHeaderBytes || n > int64(len(data)-recordHeaderBytes) {
			return false
		}
		data = data[recordHeaderBytes+n:]
	}
	return false
}

func FuzzQueueMeta(f *testing.F) {
	f.Add("3\n0,0\n1,33\n")
	f.Add("-1\n0,0\n1,-33\n")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseQueueMeta([]byte(s))
		if err != nil {
			return
		}
		if m.readFile < 0 || m.readPos < 0 || m.writeFile < 0 || m.writePos < 0 || !m.known {
			t.Fatalf("%q is %+v", s, m)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add(
		`{"topics":[{"name":"t","paused":true,"channels":[{"name":"c"},{"name":"../x"}]},{"name":"e#ephemeral"}],` +
			`"version":"1.3.0"}`)
	f.Fuzz(func(t *testing.T, s string) {
		m, _, err := parseMetadata([]byte(s))
		if err != nil {
			return
		}
		for _, topic := range m.Topics {
			for _, name := range append([]string{topic.Name}, channelNames(topic)...) {
				if name == "" || len(name) > maxNameBytes || name != filepath.Base(name) && name != "." && name != ".." {
					t.Fatalf("the name %q got through", name)
				}
			}
		}
	})
}

func channelNames(t topicMetadata) (names []string) {
	for _, c := range t.Channels {
		names = append(names, c.Name)
	}
	return names
}
