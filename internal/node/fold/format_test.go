package fold

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

var kindNames = map[string]ControlKind{
	"ChannelCreated": ChannelCreated, "ChannelDeleted": ChannelDeleted, "Confirmed": Confirmed, "Deferred": Deferred,
	"ChannelPaused": ChannelPaused, "ChannelSkipped": ChannelSkipped, "ChannelReset": ChannelReset,
	"TopicPaused": TopicPaused, "TopicEmptied": TopicEmptied, "EpochStart": EpochStart, "Checkpoint": Checkpoint,
	"ChannelConfigured": ChannelConfigured, "DeadLettered": DeadLettered, "DeadLetterMoved": DeadLetterMoved,
	"DeferredCarried": DeferredCarried, "ProducerOpened": ProducerOpened, "ProducerTaken": ProducerTaken,
	"ProducerRemoved": ProducerRemoved,
}

// FORMAT.md defines the bytes: its table must agree with the code.
func TestFormatTable(t *testing.T) {
	text, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \| (yes)? ?\| (yes)? ?\| (\d+) \|`).FindAllStringSubmatch(
		string(text), -1)
	if len(rows) != len(kindNames) || len(rows) != int(lastControlKind) {
		t.Fatalf("FORMAT.md lists %d kinds, the code has %d, the last is %d", len(rows), len(kindNames), lastControlKind)
	}
	for _, row := range rows {
		number, _ := strconv.Atoi(row[1])
		kind, ok := kindNames[row[2]]
		if !ok || int(kind) != number {
			t.Errorf("FORMAT.md: %s is %d, in the code it is %d", row[2], number, kind)
		}
		if row[5] != strconv.Itoa(kind.Level()) || kind.Level() < 1 {
			t.Errorf("FORMAT.md: %s is of level %s; in the code of %d", row[2], row[5], kind.Level())
		}
		if (row[3] == "yes") != kind.ofChannel() || (row[4] == "yes") != kind.hasFlag() {
			t.Errorf("FORMAT.md: %s: channel %q, flag %q; in the code %v, %v",
				row[2], row[3], row[4], kind.ofChannel(), kind.hasFlag())
		}
	}
	for _, want := range []string{
		"| 8 | name length | name |", "| 4 | 4 | payload length | u32 |",
		"1.." + strconv.Itoa(MaxChannelNameBytes) + " for kinds", "at most " + strconv.Itoa(MaxAttempts),
		"| version | 1 byte | " + strconv.Itoa(cursorsVersion1) + " to " + strconv.Itoa(cursorsVersion) + ";",
		"uvarint count (1 to " + strconv.Itoa(MaxProducerCount) + ")",
		"number of batches (1 byte, at most " + strconv.Itoa(ProducerWindow) + ")",
		"more than " + strconv.Itoa(ProducerAgeNs/(24*3600*1_000_000_000)) + " days before",
		"more than " + strconv.Itoa(ProducerStepNs/(3600*1_000_000_000)) + " hour after",
		"| format | 1 byte | " + strconv.Itoa(settingsFormat) + " |", "at most " + strconv.Itoa(MaxFilterRules) + " rules",
		"at most " + strconv.Itoa(MaxHeaderName) + " bytes", "1.." + strconv.Itoa(MaxTopicNameBytes),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("FORMAT.md does not say %q", want)
		}
	}
	for _, r := range ChannelRows {
		must := "no"
		if r.Must {
			must = "yes"
		}
		row := fmt.Sprintf("| %d | `%s` | %s | %d |\n", r.Tag, r.Name, must, max(r.Level, settingsLevel))
		if !strings.Contains(string(text), row) {
			t.Errorf("FORMAT.md does not say %q", row)
		}
	}
}
