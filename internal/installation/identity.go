package installation

import "fmt"

// A Role is what a service or person may do.
type Role string

// The roles. What each may do is in docs/security.md.
const (
	Admin     Role = "admin"     // owns the index's tables: init and migrate
	Committer Role = "committer" // hands out work, applies results, commits; the keeper and the scheduler
	Walker    Role = "walker"    // lists and stats the filers of its site
	Reader    Role = "reader"    // reads files of its site, and stores packs
	Operator  Role = "operator"  // what people type: reads the index, submits, restores with an identity
	Monitor   Role = "monitor"   // reads /metrics of the services, and nothing else
)

// An Identity is one that servers know: a role, at a site where the role works at
// one. Its certificate carries its name, with a generation: a later generation of
// the same identity replaces it, and for a while both are accepted.
type Identity struct {
	Role       Role
	Site       string // walkers and readers only
	Generation int    // from 1
}

// Folder is where its files are in an installation: "walker@paris", "committer".
func (i Identity) Folder() string {
	if i.Site == "" {
		return string(i.Role)
	}
	return fmt.Sprintf("%s@%s", i.Role, i.Site)
}

// Name is its certificate's common name, and its user at the servers: "walker@paris/2", "committer/1".
func (i Identity) Name() string {
	return fmt.Sprintf("%s/%d", i.Folder(), i.Generation)
}
