package faults

import (
	"reflect"
	"testing"
)

// notFaults are the fields of Stats that are amounts or speeds, or that another field reports as a fault.
var notFaults = map[string]bool{
	"Groups": true, "BatchesPerGroup": true, "CommitBytes": true,
	"FlushMeanMicros": true, "FlushP50Micros": true, "FlushP99Micros": true, "Marks": true, "TornBytes": true,
	"StallsBuffer": true, "StallsFile": true, "StallsFull": true,
	"CommitLiveBytes": true, "CommitRoomBytes": true, "CommitFileBytes": true, "StateBytes": true,
	"StateLimitBytes": true, "HeapLimitBytes": true, "ListedPartitions": true, "PartitionLimit": true,
	"ListedTopics": true, "TopicLimit": true,
	"FreeBuffers": true, "Buffers": true, "WaitingBytes": true, "Overloaded": true,
	"InflatingBytes": true, "InflationRefused": true,
	"SegmentBytes": true, "SegmentSyncs": true, "OpenSegments": true, "TrashEntries": true,
	"MappedSegments": true, "TrimmedBytes": true,
	"ISRChanges": true, "Partitions": true, "AbsentReplicas": true, "FramesNoCopy": true,
	"SkippedMessages": true, "SkippingSince": true, "SkippedBefore": true,
	"DiskWaitedMs": true, "DiskProbes": true, "AsideMessages": true, "AsideBytes": true,
	"ScrubRounds": true, "ScrubBytes": true, "ScrubPartitions": true, "ScrubRunning": true,
}

// Every trouble that a node counts has words for people, so that penstock cluster status shows it: each field of
// Stats is one of the faults, or is listed here.
func TestFaultsHaveWords(t *testing.T) {
	for i := range reflect.TypeFor[Stats]().NumField() {
		var s Stats
		name, f := reflect.TypeFor[Stats]().Field(i).Name, reflect.ValueOf(&s).Elem().Field(i)
		switch f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Uint64:
			f.SetUint(1)
		case reflect.Int, reflect.Int64:
			f.SetInt(clockAheadFaultMs)
		case reflect.Float64:
			f.SetFloat(1)
		case reflect.String:
			f.SetString("hung")
		default:
			t.Fatalf("what is %s?", name)
		}
		faults := s.Faults()
		if told := len(faults) == 1 && faults[0].Words != ""; told == notFaults[name] {
			t.Errorf("with something in %s the faults are %v", name, faults)
		}
	}
}
