package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// sbom returns the CycloneDX document of a program: the modules that it says it was built from, with their versions and
// their sums in go.sum's notation, and the version of Go.
func (r *release) sbom(binary, arch string) ([]byte, error) {
	list, goVersion, err := modules(binary)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, sum[:]).URN()
	root := cdx.Component{
		BOMRef: "penstock", Type: cdx.ComponentTypeApplication, Name: "penstock", Version: r.version,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{{Name: "commit", Value: r.commit}, {Name: "architecture", Value: "linux/" + arch}},
	}
	bom.Metadata = &cdx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &root}
	components := []cdx.Component{library("std", strings.TrimPrefix(goVersion, "go"), "")}
	for _, m := range list {
		components = append(components, library(m.Path, m.Version, m.Sum))
	}
	refs := make([]string, 0, len(components))
	for i := range components {
		refs = append(refs, components[i].BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: root.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	err = cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return b.Bytes(), err
}

func library(path, version, sum string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: sum}}
	}
	return c
}
