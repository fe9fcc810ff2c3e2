package fold

import (
	"encoding/binary"
	"errors"
	"fmt"

	"penstock/segment"
)

// ControlKind says what one entry of a control batch does. The numbers are the
// bytes on disk (FORMAT.md): they never change and are never reused. Zero is invalid.
type ControlKind uint8

const (
	ChannelCreated ControlKind = 1  // Channel, ID = its first message
	ChannelDeleted ControlKind = 2  // Channel
	Confirmed      ControlKind = 3  // Channel, Ranges
	Deferred       ControlKind = 4  // Channel, Deferrals
	ChannelPaused  ControlKind = 5  // Channel, Flag
	ChannelSkipped ControlKind = 6  // Channel, Flag
	ChannelReset   ControlKind = 7  // Channel, ID: confirmed becomes exactly "everything below ID"
	TopicPaused    ControlKind = 8  // Flag, ID = first message that is held back
	TopicEmptied   ControlKind = 9  // ID: messages below it that no channel owns, or that are held back, are dropped
	EpochStart     ControlKind = 10 // Epoch
	Checkpoint     ControlKind = 11 // Cursors: the whole fold at this place in the log

	ChannelConfigured ControlKind = 12 // Channel, Settings
	DeadLettered      ControlKind = 13 // Channel, Dead: one entry confirms them and puts them into the outbox
	DeadLetterMoved   ControlKind = 14 // Channel, Ranges: they left the outbox; the dead-letter topic has stored them
	DeferredCarried   ControlKind = 15 // Carried: copies of waiting messages, so that their segments may be removed

	ProducerOpened ControlKind = 16 // Producer: from here on its earlier epochs are fenced

	ProducerTaken ControlKind = 17 // Producer: likewise, for a tenure

	ProducerRemoved ControlKind = 18 // Producer, only its ID: it is forgotten

	lastControlKind = ProducerRemoved
)

// kindLevels has the feature level (internal/node/level.go) from which on a kind may be written: versions with a lower
// level cannot read it. A new kind gets the newest level.
var kindLevels = [lastControlKind + 1]uint8{
	ChannelCreated: 1, ChannelDeleted: 1, Confirmed: 1, Deferred: 1, ChannelPaused: 1, ChannelSkipped: 1, ChannelReset: 1,
	TopicPaused: 1, TopicEmptied: 1, EpochStart: 1, Checkpoint: 1,
	ChannelConfigured: 1, DeadLettered: 1, DeadLetterMoved: 1, DeferredCarried: 1,
	ProducerOpened: 3, ProducerTaken: 5, ProducerRemoved: 5,
}

// Level returns the first feature level at which the kind may be written, or 0 if there is no such kind.
func (k ControlKind) Level() int {
	if k > lastControlKind {
		return 0
	}
	return int(kindLevels[k])
}

// Control is one entry of a control batch; only the fields of its kind are used.
type Control struct {
	Kind      ControlKind
	Channel   string // 1..MaxChannelNameBytes bytes for kinds 1 to 7 and 12 to 14, else empty
	ID        segment.MsgID
	Ranges    []IDRange  // sorted, not touching, none empty
	Deferrals []Deferral // sorted by ID, each ID once
	Flag      bool
	Epoch     segment.Epoch
	Cursors   *Cursors
	Settings  *ChannelSettings
	Dead      []DeadMessage    // sorted by ID, each ID once
	Carried   []CarriedMessage // sorted by ID, each ID once
	Producer  ProducerOpening

	// Start is set in a ChannelCreated that is not encoded yet, if somebody has said where the channel starts: whoever
	// encodes it puts it into ID, as far as the log has it (Cursors.StartAt)
	Start *segment.MsgID

	wanted *segment.MsgID // set by CarriedRecord: Carried holds only this message
}

// Deferral says until when a channel's message waits, and how often it was delivered before.
type Deferral struct {
	ID       segment.MsgID
	DueMs    int64 // unix ms
	Attempts uint16
	// Recent: the deferral was written since the log's last epoch began, as far as is known. It is set only in
	// Cursor.Requeued and is not encoded
	Recent bool
	// offset of the control batch that carries the message; 0: the message lies where it was published. It is set only
	// in Cursor.Requeued and is not encoded
	At segment.Offset
}

const (
	// MaxChannelNameBytes is the longest channel name, "#ephemeral" included.
	MaxChannelNameBytes = 64
	// MaxAttempts is the largest delivery count of a message. Further deliveries do not raise it, because some clients
	// read it as a signed 16-bit number.
	MaxAttempts = 32767

	controlHeaderBytes = 8
	controlFlagSet     = 1
)

// Errors of decoding and folding control batches, tested with errors.Is.
var (
	// ErrBadControl says that the body of a control batch is not valid. Since the batch's CRC was right, a program
	// wrote it wrongly. Later batches must not be folded.
	ErrBadControl = errors.New("engine: control batch cannot be read: the channels' state is unknown from here on; " +
		"restore the partition from a replica or a backup")
	// ErrNewerControl says that a newer version wrote this log.
	ErrNewerControl = errors.New(
		"engine: control batch was written by a newer version: no data is lost; run that version or a newer one")
)

func badControl(format string, args ...any) error {
	return fmt.Errorf("%w (%s)", ErrBadControl, fmt.Sprintf(format, args...))
}

// Level returns the lowest feature level at which the entry may be written; 0: its kind does not exist.
func (c *Control) Level() int {
	level := c.Kind.Level()
	if c.Settings != nil && level > 0 {
		need, _ := c.Settings.Level()
		level = max(level, need)
	}
	return level
}

// ofChannel says whether the kind names a channel.
func (k ControlKind) ofChannel() bool {
	return ChannelCreated <= k && k <= ChannelReset || ChannelConfigured <= k && k <= DeadLetterMoved
}

// AppendControl appends the encoded entry to dst. It allocates only to grow dst. It panics if c breaks the rules of its
// fields.
func AppendControl(dst []byte, c *Control) []byte {
	if c.Kind < ChannelCreated || c.Kind > lastControlKind {
		panic("BUG: control entry without a kind")
	}
	if c.Kind.ofChannel() != (c.Channel != "") || len(c.Channel) > MaxChannelNameBytes {
		panic("BUG: control entry names its channel wrongly: " + c.Channel)
	}
	start := len(dst)
	flags := byte(0)
	if c.Flag && c.Kind.hasFlag() {
		flags = controlFlagSet
	}
	dst = append(dst, byte(c.Kind), flags, byte(len(c.Channel)), 0, 0, 0, 0, 0)
	dst = append(dst, c.Channel...)
	payload := len(dst)
	switch c.Kind {
	case ChannelCreated, ChannelReset, TopicPaused, TopicEmptied:
		dst = binary.AppendUvarint(dst, uint64(c.ID))
	case EpochStart:
		dst = binary.AppendUvarint(dst, uint64(c.Epoch))
	case Confirmed, DeadLetterMoved:
		dst = appendRanges(dst, c.Ranges)
	case Deferred:
		dst = appendDeferrals(dst, c.Deferrals)
	case Checkpoint:
		dst = c.Cursors.Append(dst)
	case ChannelConfigured:
		dst = c.Settings.Append(dst)
	case DeadLettered:
		dst = appendDead(dst, c.Dead)
	case DeferredCarried:
		dst = appendCarried(dst, c.Carried)
	case ProducerOpened:
		dst = appendOpening(dst, &c.Producer)
	case ProducerTaken:
		dst = appendTaking(dst, &c.Producer)
	case ProducerRemoved:
		dst = appendRemoval(dst, &c.Producer)
	}
	binary.LittleEndian.PutUint32(dst[start+4:], uint32(len(dst)-payload))
	return dst
}

func (k ControlKind) hasFlag() bool {
	return k == ChannelPaused || k == ChannelSkipped || k == TopicPaused
}

// DecodeControls calls visit for every entry of a control batch's body, in order. The Control and all it points to are
// borrowed: visit must not keep them, except Cursors and Settings, which visit may keep. If the body is not exactly a
// sequence of valid entries, visit is called for the entries before the first bad one, and DecodeControls returns an
// error.
func DecodeControls(body []byte, visit func(*Control) error) error {
	var ct Control
	return decodeControls(&ct, body, func(name []byte) string { return string(name) }, visit)
}

// decodeControls is DecodeControls with a function that makes a string of a channel's name, so that folding entries of
// known channels does not allocate.
func decodeControls(ct *Control, body []byte, name func([]byte) string, visit func(*Control) error) error {
	for d := (decoder{p: body}); len(d.p) > 0; {
		if err := ct.decode(&d, name); err != nil {
			return err
		}
		if err := visit(ct); err != nil {
			return err
		}
	}
	return nil
}

// decode reads one entry into c and reuses its slices.
func (c *Control) decode(d *decoder, name func([]byte) string) error {
	if len(d.p) < controlHeaderBytes {
		return badControl("%d bytes are left where an entry's header has %d", len(d.p), controlHeaderBytes)
	}
	h := d.p[:controlHeaderBytes]
	kind, flags, nameBytes := ControlKind(h[0]), h[1], int(h[2])
	payloadBytes := int64(binary.LittleEndian.Uint32(h[4:]))
	if kind > lastControlKind {
		return fmt.Errorf("%w (entry kind %d)", ErrNewerControl, kind)
	}
	if kind == 0 || h[3] != 0 || flags > controlFlagSet || flags != 0 && !kind.hasFlag() {
		return badControl("header % x", h)
	}
	if kind.ofChannel() != (nameBytes > 0) || nameBytes > MaxChannelNameBytes {
		return badControl("entry of kind %d has a name of %d bytes", kind, nameBytes)
	}
	if rest := int64(len(d.p) - controlHeaderBytes); int64(nameBytes)+payloadBytes > rest {
		return badControl("entry of kind %d wants %d bytes, %d are left", kind, int64(nameBytes)+payloadBytes, rest)
	}
	*c = Control{
		Kind: kind, Flag: flags != 0,
		Ranges: c.Ranges[:0], Deferrals: c.Deferrals[:0], Dead: c.Dead[:0], Carried: c.Carried[:0], wanted: c.wanted,
	}
	if nameBytes > 0 {
		c.Channel = name(d.p[controlHeaderBytes:][:nameBytes])
	}
	body := decoder{p: d.p[controlHeaderBytes+nameBytes:][:payloadBytes]}
	d.p = d.p[controlHeaderBytes+nameBytes+int(payloadBytes):]
	if err := c.decodePayload(&body); err != nil {
		return err
	}
	if body.newer {
		return fmt.Errorf("%w (%s)", ErrNewerControl, body.bad)
	}
	if body.bad != "" {
		return badControl("entry of kind %d: %s", kind, body.bad)
	}
	if len(body.p) != 0 {
		return badControl("entry of kind %d has %d bytes too many", kind, len(body.p))
	}
	return nil
}

func (c *Control) decodePayload(d *decoder) (err error) {
	switch c.Kind {
	case ChannelCreated, ChannelReset, TopicPaused, TopicEmptied:
		c.ID = d.msgID()
	case EpochStart:
		c.Epoch = segment.Epoch(d.uvarint())
	case Confirmed, DeadLetterMoved:
		c.Ranges = d.ranges(c.Ranges)
	case Deferred:
		c.Deferrals = d.deferrals(c.Deferrals)
	case Checkpoint:
		c.Cursors, d.p, err = DecodeCursors(d.p)
	case ChannelConfigured:
		s := d.settings()
		c.Settings = &s
	case DeadLettered:
		c.Dead = d.dead(c.Dead)
	case DeferredCarried:
		c.Carried = d.carried(c.Carried, c.wanted)
	case ProducerOpened:
		c.Producer = d.opening()
	case ProducerTaken:
		c.Producer = d.taking()
	case ProducerRemoved:
		c.Producer = d.removal()
	}
	return err
}

// appendRanges writes the count and then, for each range, its distance from the end of the previous one, and its length
// minus one. Ranges that touch must have been merged, so only the first range can have a distance of 0.
func appendRanges(dst []byte, ranges []IDRange) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ranges)))
	end := segment.MsgID(0)
	for i, r := range ranges {
		if r.From >= r.To || i > 0 && r.From <= end {
			panic("BUG: ranges are not sorted, merged and filled")
		}
		dst = binary.AppendUvarint(dst, uint64(r.From-end))
		dst = binary.AppendUvarint(dst, uint64(r.To-r.From-1))
		end = r.To
	}
	return dst
}

// appendDeferrals writes the count and then, for each deferral, its id as a difference from the previous one, its due
// time, and its attempts.
func appendDeferrals(dst []byte, deferrals []Deferral) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(deferrals)))
	last := segment.MsgID(0)
	for i, d := range deferrals {
		if i > 0 && d.ID <= last || d.DueMs < 0 || d.Attempts > MaxAttempts {
			panic("BUG: deferrals are not sorted by id, or out of range")
		}
		dst = binary.AppendUvarint(dst, uint64(d.ID-last))
		dst = binary.AppendUvarint(dst, uint64(d.DueMs))
		dst = binary.AppendUvarint(dst, uint64(d.Attempts))
		last = d.ID
	}
	return dst
}

// decoder reads the numbers of a payload. After the first error bad describes it, every read returns zero, and no bytes
// are left to read. So the caller checks bad only once, at the end.
type decoder struct {
	p     []byte
	bad   string
	newer bool // bad is what a newer version wrote
}

func (d *decoder) fail(what string) {
	if d.bad == "" {
		d.bad = what
	}
	d.p = nil
}

// uvarint accepts only the shortest encoding of a number, so that a state has just one encoding and replicas can be
// compared byte for byte.
func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.p)
	if n <= 0 || n > 1 && d.p[n-1] == 0 {
		d.fail("a number is cut off, too large or padded")
		return 0
	}
	d.p = d.p[n:]
	return v
}

// atMost reads a number that must not exceed limit.
func (d *decoder) atMost(limit uint64) uint64 {
	v := d.uvarint()
	if v > limit {
		d.fail("a number is out of range")
		return 0
	}
	return v
}

// count reads a count of items of at least itemBytes each. It fails if the rest of the payload is too short for them,
// so that a wrong count cannot make the reader allocate more than the payload's size allows.
func (d *decoder) count(itemBytes int) int {
	v := d.uvarint()
	if v > uint64(len(d.p)/itemBytes) {
		d.fail("a count is larger than what follows")
		return 0
	}
	return int(v)
}

func (d *decoder) byte() byte {
	if len(d.p) == 0 {
		d.fail("a byte is missing")
		return 0
	}
	b := d.p[0]
	d.p = d.p[1:]
	return b
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.p) {
		d.fail("bytes are missing")
		return nil
	}
	b := d.p[:n]
	d.p = d.p[n:]
	return b
}

// msgID also accepts the id after the largest one, because ends of ranges and starts of channels are exclusive ends.
func (d *decoder) msgID() segment.MsgID {
	return segment.MsgID(d.atMost(uint64(segment.MaxMsgID) + 1))
}

func (d *decoder) ranges(dst []IDRange) []IDRange {
	end := segment.MsgID(0)
	for i, n := 0, d.count(2); i < n && d.bad == ""; i++ {
		gap, length := d.msgID(), d.msgID()+1
		if i > 0 && gap == 0 || end+gap+length > segment.MaxMsgID+1 {
			d.fail("ranges touch or pass the last id")
			return dst
		}
		dst = append(dst, IDRange{end + gap, end + gap + length})
		end += gap + length
	}
	return dst
}

func (d *decoder) deferrals(dst []Deferral) []Deferral {
	last := segment.MsgID(0)
	for i, n := 0, d.count(3); i < n && d.bad == ""; i++ {
		id := last + d.msgID()
		due, attempts := int64(d.atMost(1<<63-1)), uint16(d.atMost(MaxAttempts))
		if i > 0 && id == last || id > segment.MaxMsgID {
			d.fail("deferrals are not sorted by id")
			return dst
		}
		dst = append(dst, Deferral{ID: id, DueMs: due, Attempts: attempts})
		last = id
	}
	return dst
}
