package batch

import (
	"errors"
	"testing"
)

func TestID(t *testing.T) {
	for _, tc := range []struct {
		part uint32
		msg  MsgID
		text string
	}{
		{0, 0, "0000000000000000"},
		{0, 255, "00000000000000ff"},
		{1, 2, "0001000000000002"},
		{MaxPartition, MaxMsgID, "ffffffffffffffff"},
		{0xabcd, 0x0123456789ab, "abcd0123456789ab"},
	} {
		id := MakeID(tc.part, tc.msg)
		if id.String() != tc.text || id.Partition() != tc.part || id.MsgID() != tc.msg {
			t.Errorf("MakeID(%d, %d) = %s, partition %d, message %d", tc.part, tc.msg, id, id.Partition(), id.MsgID())
		}
		if back, err := ParseID([]byte(tc.text)); err != nil || back != id {
			t.Errorf("ParseID(%s) = %s, %v", tc.text, back, err)
		}
	}
	for _, text := range []string{
		"", "0", "000000000000000", "00000000000000000", "000000000000000G", "000000000000000A", "00000000 0000000",
		"00000000\n0000000",
	} {
		if _, err := ParseID([]byte(text)); !errors.Is(err, ErrBadID) {
			t.Errorf("ParseID(%q) gives error %v", text, err)
		}
	}
	text := []byte("abcd0123456789ab")
	if n := testing.AllocsPerRun(100, func() {
		id, _ := ParseID(text)
		text = id.Append(text[:0])
	}); n != 0 {
		t.Errorf("ParseID and Append allocate %v times", n)
	}
}

func TestMakeIDPanics(t *testing.T) {
	for _, f := range []func(){
		func() { MakeID(MaxPartition+1, 0) },
		func() { MakeID(0, MaxMsgID+1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("numbers that do not fit were accepted")
				}
			}()
			f()
		}()
	}
}
