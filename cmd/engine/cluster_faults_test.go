package main

import (
	"bytes"
	"os"
	"reflect"
	"testing"

	"penstock/internal/cluster/admin"
	"penstock/internal/node"
)

// Every fault that a node counts is one line of penstock cluster status. A node without faults has no line.
func TestFaultsTable(t *testing.T) {
	all := node.StorageStats{
		Failed: true, DiskFull: true, DiskState: "hung", SkippingSince: "2026-01-31T12:00:00Z", SkippedBefore: true,
	}
	v := reflect.ValueOf(&all).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(3)
		case reflect.Int, reflect.Int64:
			f.SetInt(4000)
		}
	}
	st := &admin.Status{Node: "n1", Joined: true, Healthy: true, Health: "healthy: all is well", Nodes: []admin.Node{
		{ID: 1, Name: "n1", Live: true, Disk: "hung"},
		{ID: 2, Name: "n2", Live: true, Disk: "good"},
		{ID: 3, Name: "n3", Live: true, Disk: "good", NoFaults: "context deadline exceeded"},
		{ID: 4, Name: "n4", Live: true, Disk: "slow"},
	}}
	for _, f := range all.Faults() {
		st.Nodes[0].Faults = append(st.Nodes[0].Faults, admin.Fault(f))
	}
	for _, s := range []node.StorageStats{
		{DiskState: "good", ClockAheadMs: 10}, {DiskState: "slow", ClockAheadMs: -3_600_000},
	} {
		n := &st.Nodes[1]
		if s.DiskState == "slow" {
			n = &st.Nodes[3]
		}
		for _, f := range s.Faults() {
			n.Faults = append(n.Faults, admin.Fault(f))
		}
	}
	var out bytes.Buffer
	if err := printStatus(&out, st); err != nil {
		t.Fatal(err)
	}
	const name = "testdata/cluster_faults.txt"
	if *update {
		if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("it prints\n%swant\n%s", out.String(), want)
	}
}
