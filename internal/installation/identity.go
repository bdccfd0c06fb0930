package installation

import "fmt"

// A Role defines the permissions of a service or person.
type Role string

// The roles. docs/security.md lists their permissions.
const (
	Admin Role = "admin" // owns the index's tables: init and migrate
	// Committer assigns work, applies results, commits, and runs the keeper and the scheduler.
	Committer Role = "committer"
	Walker    Role = "walker" // lists and stats the filers of its site
	Reader    Role = "reader" // reads files of its site, and stores packs
	// Operator is the role of people: reads the index, submits, restores with an identity.
	Operator Role = "operator"
	Pruner   Role = "pruner"   // deletes what no snapshot needs, and opens nothing
	Scrubber Role = "scrubber" // proves packs, and neither writes nor opens any
	// Restorer writes files that are restored, with keys of single packs that it is given.
	Restorer Role = "restorer"
	Monitor  Role = "monitor" // reads /metrics of the services, and nothing else
	Mirror   Role = "mirror"  // reads the store, and nothing else, to copy it to another one
)

// An Identity is a role known to servers, for one site if the role is bound to a site. Its
// certificate contains its name with a generation. A later generation of the same identity replaces
// it, and both are accepted for a time.
type Identity struct {
	Role       Role
	Site       string // walkers and readers only
	Person     string // operators only; empty: the one whom every installation has
	Generation int    // starting with 1
}

// Folder returns the folder of its files in an installation: "walker@paris", "operator@alice",
// "committer".
func (i Identity) Folder() string {
	if i.Site+i.Person == "" {
		return string(i.Role)
	}
	return fmt.Sprintf("%s@%s", i.Role, i.Site+i.Person)
}

// Name returns its certificate's common name, which is also its user at the servers:
// "walker@paris/2", "committer/1".
func (i Identity) Name() string {
	return fmt.Sprintf("%s/%d", i.Folder(), i.Generation)
}
