package migrate

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The files of a queue of nsqd, where NAME is TOPIC or TOPIC:CHANNEL:
//
//	NAME.diskqueue.000000.dat    records; the next file has the next number
//	NAME.diskqueue.meta.dat      text: depth LF read file,read position LF write file,write position LF
//
//	record      4  size of the rest, big endian
//	            8  time of the publish, ns since 1970, big endian
//	            2  attempts, big endian
//	           16  message id, ASCII hex
//	            n  body
//
// nsqd writes the meta file every few thousand messages and when it stops. After a crash both positions may therefore
// be out of date. As nsqd does, the import takes everything from the read position to the end of the last file.
const (
	dataInfix  = ".diskqueue."
	dataSuffix = ".dat"
	metaSuffix = ".diskqueue.meta.dat"
	badSuffix  = ".bad"

	recordHeaderBytes  = 4
	messageHeaderBytes = 8 + 2 + idBytes
	idBytes            = 16

	// MaxBodyBytes is the size of the largest body that is accepted; a longer record counts as damage. It is the size
	// of the largest batch of a target, less its framing.
	MaxBodyBytes = 15<<20 - 4096

	maxMetaBytes   = 4096
	readAheadBytes = 256 << 10
)

// Message is one record. Body is valid only until the function that it was passed to returns.
type Message struct {
	ID        [idBytes]byte
	Timestamp int64 // when it was published to nsqd, ns since 1970
	Attempts  uint16
	Body      []byte

	file   int64 // number of the file
	offset int64 // offset of the body in the file
}

// Damage is one place in a queue that could not be read.
type Damage struct {
	File   string // name in nsqd's directory
	Offset int64
	Bytes  int64 // number of bytes not read because of it; 0 if unknown
	Reason string
}

// String returns a line of text for the operator.
func (d Damage) String() string {
	return fmt.Sprintf("%s at byte %d: %s (%d bytes not read)", d.File, d.Offset, d.Reason, d.Bytes)
}

// queueMeta is the contents of a meta file. With the zero value all files are read completely.
type queueMeta struct {
	known               bool
	depth               int64
	readFile, readPos   int64
	writeFile, writePos int64
}

func parseQueueMeta(data []byte) (queueMeta, error) {
	m := queueMeta{known: true}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	bad := fmt.Errorf("it is not three lines of numbers: %.60q", data)
	if len(lines) != 3 {
		return queueMeta{}, bad
	}
	var err error
	number := func(s string) (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(s, 10, 64)
		}
		return n
	}
	m.depth = number(lines[0])
	for i, to := range [][2]*int64{{&m.readFile, &m.readPos}, {&m.writeFile, &m.writePos}} {
		file, pos, ok := strings.Cut(lines[i+1], ",")
		if !ok {
			return queueMeta{}, bad
		}
		*to[0], *to[1] = number(file), number(pos)
	}
	if err != nil || m.readFile < 0 || m.readPos < 0 || m.writeFile < 0 || m.writePos < 0 {
		return queueMeta{}, bad
	}
	return m, nil
}

// Queue is the backlog of a topic (then Channel is "") or of one of its channels.
type Queue struct {
	Topic, Channel string

	name  string // common prefix of its file names
	root  *os.Root
	files []int64 // numbers of the data files, ascending
	bad   []string
	meta  bool // whether there is a meta file
}

// Counts are the results of reading a queue.
type Counts struct {
	Messages int64
	Bytes    int64 // of bodies
	Largest  int   // size of the largest body
	Damage   []Damage
	Notes    []string // observations for the operator about which nothing is lost
}

func (q *Queue) metaName() string { return q.name + metaSuffix }
func (q *Queue) fileName(n int64) string {
	return fmt.Sprintf("%s%s%06d%s", q.name, dataInfix, n, dataSuffix)
}

// Read calls fn for every message, oldest first, and returns what it found. Damage ends the reading of a file, because
// nothing says where the next record begins; Read continues with the next file. The error is that of fn or of the file
// system.
func (q *Queue) Read(fn func(*Message) error) (Counts, error) {
	var c Counts
	meta, err := q.readMeta(&c)
	if err != nil {
		return c, err
	}
	for _, name := range q.bad {
		c.Notes = append(c.Notes, name+" was set aside as unreadable by nsqd and is not read")
	}
	q.checkFiles(&meta, &c)
	r := bufio.NewReaderSize(nil, readAheadBytes)
	m := new(Message)
	for _, n := range q.files {
		start := int64(0)
		switch {
		case meta.known && n < meta.readFile:
			continue // nsqd consumed it
		case meta.known && n == meta.readFile:
			start = meta.readPos
		}
		end := int64(0)
		if meta.known && n == meta.writeFile {
			end = meta.writePos
		}
		if err := q.readFile(r, m, n, start, end, &c, fn); err != nil {
			return c, err
		}
	}
	return c, nil
}

// readMeta reads the meta file. It treats an unreadable one as damage; all data files are then read completely.
func (q *Queue) readMeta(c *Counts) (queueMeta, error) {
	if !q.meta {
		if len(q.files) > 0 {
			c.Notes = append(c.Notes, q.metaName()+" is missing, as after a crash before nsqd's first sync: all files are read")
		}
		return queueMeta{}, nil
	}
	data, err := readBounded(q.root, q.metaName(), maxMetaBytes)
	if err != nil {
		return queueMeta{}, fmt.Errorf("migrate: %s cannot be read: %w", q.metaName(), err)
	}
	meta, err := parseQueueMeta(data)
	if err != nil {
		c.damage(q.metaName(), 0, 0, err.Error()+"; all files are read, so that messages which were consumed may come again")
	}
	return meta, nil
}

// checkFiles compares the positions in the meta file with the files that exist.
func (q *Queue) checkFiles(meta *queueMeta, c *Counts) {
	if !meta.known {
		return
	}
	if meta.readFile > meta.writeFile || meta.readFile == meta.writeFile && meta.readPos > meta.writePos {
		c.damage(q.metaName(), 0, 0,
			"it reads behind its end; all files are read, so that messages which were consumed may come again")
		*meta = queueMeta{}
		return
	}
	if meta.readFile == meta.writeFile && meta.readPos == meta.writePos {
		return // empty; its file need not exist
	}
	// The loop runs over the existing files, so that a wrong number in the meta file cannot make it run long.
	next := meta.readFile
	for _, n := range q.files {
		if n < meta.readFile {
			continue
		}
		if n > next && next <= meta.writeFile {
			q.missing(next, n, meta, c)
		}
		next = n + 1
	}
	if next < meta.writeFile || next == meta.writeFile && meta.writePos > 0 {
		q.missing(next, meta.writeFile+1, meta, c)
	}
}

func (q *Queue) missing(from, to int64, meta *queueMeta, c *Counts) {
	if from == meta.readFile && to == from+1 && from < meta.writeFile {
		c.Notes = append(c.Notes, q.fileName(from)+" is gone: nsqd had consumed it when it was killed")
		return
	}
	c.damage(q.fileName(from), 0, 0, fmt.Sprintf("%d file(s) are missing", to-from))
}

func (c *Counts) damage(file string, offset, bytes int64, reason string) {
	c.Damage = append(c.Damage, Damage{File: file, Offset: offset, Bytes: max(bytes, 0), Reason: reason})
}

// readFile reads one file from start on. wanted is the end of the file according to the meta file, or 0 if the meta
// file does not say.
func (q *Queue) readFile(
	r *bufio.Reader, m *Message, n, start, wanted int64, c *Counts, fn func(*Message) error,
) error {
	name := q.fileName(n)
	f, err := q.root.Open(name)
	if err != nil {
		return fmt.Errorf("migrate: %s cannot be read: %w", name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("migrate: %s cannot be read: %w", name, err)
	}
	size := st.Size()
	if start > size || wanted > size {
		c.damage(name, size, max(start, wanted)-size, fmt.Sprintf("the file has %d bytes, and %s says at least %d",
			size, q.metaName(), max(start, wanted)))
	}
	if start >= size {
		return nil
	}
	r.Reset(io.NewSectionReader(f, start, size-start))
	m.file = n
	at := start
	for at < size {
		used, reason, err := readRecord(r, m, size-at)
		if err != nil {
			return fmt.Errorf("migrate: reading %s at byte %d: %w", name, at, err)
		}
		if reason != "" {
			c.damage(name, at, size-at, reason)
			return nil
		}
		m.offset = at + recordHeaderBytes + messageHeaderBytes
		if len(m.Body) == 0 {
			c.damage(name, at, used, "the message is empty, which no publish can make")
		} else {
			c.Messages++
			c.Bytes += int64(len(m.Body))
			c.Largest = max(c.Largest, len(m.Body))
			if err := fn(m); err != nil {
				return err
			}
		}
		at += used
	}
	return nil
}

// readRecord reads the next record of a file, of which left bytes remain. If they are not a record, reason says why.
func readRecord(r *bufio.Reader, m *Message, left int64) (used int64, reason string, err error) {
	if left < recordHeaderBytes+messageHeaderBytes {
		return 0, fmt.Sprintf("%d bytes are too few for a record", left), nil
	}
	var head [recordHeaderBytes + messageHeaderBytes]byte
	if _, err := io.ReadFull(r, head[:recordHeaderBytes]); err != nil {
		return 0, "", err
	}
	size := int64(int32(binary.BigEndian.Uint32(head[:recordHeaderBytes])))
	switch {
	case size < messageHeaderBytes || size > MaxBodyBytes+messageHeaderBytes:
		return 0, fmt.Sprintf("a record of %d bytes cannot be: a message has %d to %d",
			size, messageHeaderBytes, MaxBodyBytes+messageHeaderBytes), nil
	case size > left-recordHeaderBytes:
		return 0, fmt.Sprintf("a record of %d bytes ends behind the file", size), nil
	}
	if _, err := io.ReadFull(r, head[recordHeaderBytes:]); err != nil {
		return 0, "", err
	}
	b := head[recordHeaderBytes:]
	m.Timestamp = int64(binary.BigEndian.Uint64(b))
	m.Attempts = binary.BigEndian.Uint16(b[8:])
	copy(m.ID[:], b[10:])
	body := int(size) - messageHeaderBytes
	m.Body = slices.Grow(m.Body[:0], body)[:body]
	if _, err := io.ReadFull(r, m.Body); err != nil {
		return 0, "", err
	}
	return recordHeaderBytes + size, "", nil
}

// splitFileName returns the queue and the number in the name of a data file. The number is -1 for a meta file, and -2
// for a file that nsqd set aside as bad.
func splitFileName(name string) (queue string, number int64, ok bool) {
	if queue, ok = strings.CutSuffix(name, metaSuffix); ok {
		return queue, -1, true
	}
	stem, isBad := strings.CutSuffix(name, badSuffix)
	stem, ok = strings.CutSuffix(stem, dataSuffix)
	if !ok {
		return "", 0, false
	}
	i := strings.LastIndex(stem, dataInfix)
	if i < 0 {
		return "", 0, false
	}
	digits := stem[i+len(dataInfix):]
	n, err := strconv.ParseUint(digits, 10, 62)
	if err != nil || len(digits) < 6 || fmt.Sprintf("%06d", n) != digits {
		return "", 0, false
	}
	if isBad {
		return stem[:i], -2, true
	}
	return stem[:i], int64(n), true
}
