package installation

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/template"

	"github.com/bctl/bctl/internal/store"
)

// storeRoles are the roles with access to the store. Walkers do not use it.
var storeRoles = []Role{Admin, Committer, Reader, Operator, Pruner, Scrubber, Restorer, Mirror}

// An s3Right is a permission of a role at the store, independent of the type of server.
type s3Right struct {
	actions []string
	objects []string // below the store's prefix; nil: the bucket itself
}

// rights returns the permissions of a role. Only the pruner may delete objects, and no role may
// overwrite objects, as far as the server can enforce that.
func (s *Store) rights(role Role) []s3Right {
	rights := s3Rights(role)
	if s.DeleteVersions && role == Pruner {
		rights = append(rights, s3Right{[]string{"s3:DeleteObjectVersion"}, deleted}, s3Right{[]string{"s3:ListBucketVersions"}, nil})
	}
	if s.ObjectLock == store.Unlocked {
		return rights
	}
	// Nobody removes a lock. A PUT that locks its object needs the permission to lock.
	for i := range rights {
		right := &rights[i]
		right.actions = slices.DeleteFunc(right.actions, func(action string) bool { return action == bypass })
		switch puts := slices.Contains(right.actions, put) && role != Pruner; {
		case puts && s.Kind == AWS: // a statement of its own, with its condition
			rights = append(rights, s3Right{[]string{retain}, right.objects})
		case puts:
			right.actions = append(right.actions, retain)
		}
		// In the same statement, because versitygw's policies must be short.
		if slices.Contains(right.actions, "s3:ListBucket") && role != Committer {
			right.actions = append(right.actions, lockConfiguration)
		}
	}
	if role == Pruner {
		rights = append(rights, s3Right{[]string{retain}, append([]string{"repository", "keys/*"}, deleted...)})
	}
	return rights
}

// Actions of S3.
const (
	put               = "s3:PutObject"
	retain            = "s3:PutObjectRetention"
	bypass            = "s3:BypassGovernanceRetention"
	lockConfiguration = "s3:GetBucketObjectLockConfiguration"
)

// deleted are the objects that the pruner deletes.
var deleted = []string{"packs/*", "segments/*", "commits/*", "catalog/*", parityObjects}

// parityObjects are those that the pruner makes.
const parityObjects = "parity/*"

// s3Rights returns the permissions of a role at a store without object lock.
func s3Rights(role Role) []s3Right {
	get, list := "s3:GetObject", []string{"s3:ListBucket"}
	switch role {
	case Admin: // init looks for backups in the store, and writes the repository object; key writes the rest
		return []s3Right{{[]string{get}, []string{"*"}}, {list, nil}, {[]string{put}, []string{"repository", "keys/*"}}}
	case Committer:
		// Checks reported packs; without ListBucket a missing object would look like a forbidden
		// one.
		written := []string{"segments/*", "commits/*", "catalog/*"}
		return []s3Right{{[]string{get}, append([]string{"repository", "keys/*", "packs/*"}, written...)}, {list, nil}, {[]string{put}, written}}
	case Reader:
		return []s3Right{{[]string{get}, []string{"repository", "packs/*"}}, {[]string{put}, []string{"packs/*"}}}
	case Operator, Mirror: // restores, or copies to another store
		return []s3Right{{[]string{get}, []string{"*"}}, {list, nil}}
	case Restorer: // without ListBucket a missing pack would look like a forbidden one
		return []s3Right{{[]string{get}, []string{"repository", "packs/*"}}, {list, nil}}
	case Scrubber: // without ListBucket a missing pack would look like a forbidden one
		return []s3Right{{[]string{get}, []string{"repository", "packs/*", "segments/*", "commits/*", "catalog/*", "index/*", parityObjects}}, {list, nil}}
	case Pruner:
		// The objects of a versitygw are locked, so that nobody overwrites them.
		remove := []string{"s3:DeleteObject", bypass}
		packs := []string{"packs/*", parityObjects} // it copies what is needed of packs that are not needed as a whole
		return []s3Right{{[]string{get}, append([]string{"repository"}, packs...)}, {list, nil}, {[]string{put}, packs}, {remove, deleted}}
	}
	return nil
}

// A statement is a statement of a policy in Amazon's language, which the other servers support in
// part.
type statement struct {
	Sid       string         `json:",omitempty"`
	Effect    string         `json:""`
	Principal any            `json:",omitempty"`
	Action    []string       `json:""`
	Resource  []string       `json:""`
	Condition map[string]any `json:",omitempty"`
}

// A policyDocument is a policy in Amazon's language.
type policyDocument struct {
	Version   string
	Statement []statement
}

const policyVersion = "2012-10-17"

func encodePolicy(statements []statement) ([]byte, error) {
	text, err := json.MarshalIndent(policyDocument{policyVersion, statements}, "", "  ")
	return append(text, '\n'), err
}

// bucket returns the store's bucket, and the prefix of its objects, which is empty or ends with a
// slash.
func (s *Store) bucket() (bucket, prefix string) {
	bucket, prefix, _ = strings.Cut(strings.TrimPrefix(s.URL, "s3://"), "/")
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return bucket, prefix
}

// port returns the port of the store's server, if it belongs to the installation.
func (s *Store) port() string {
	if u, err := url.Parse(s.Endpoint); err == nil && u.Port() != "" {
		return u.Port()
	}
	return "443"
}

// statements returns the permissions of a role. A PUT with If-None-Match never overwrites; only
// Amazon's policies can require it.
func (s *Store) statements(role Role, principal any) []statement {
	bucket, prefix := s.bucket()
	var list []statement
	for _, right := range s.rights(role) {
		of := statement{Effect: "Allow", Principal: principal, Action: right.actions, Resource: []string{"arn:aws:s3:::" + bucket}}
		if right.objects != nil {
			of.Resource = nil
			for _, name := range right.objects {
				of.Resource = append(of.Resource, "arn:aws:s3:::"+bucket+"/"+prefix+name)
			}
		}
		if s.Kind == AWS && slices.Contains(right.actions, put) {
			of.Condition = map[string]any{"Null": map[string]string{"s3:if-none-match": "false"}}
		}
		if s.Kind == AWS && role != Pruner && slices.Contains(right.actions, retain) {
			// MinIO does not know the condition for a PUT, and versitygw has none. Without it, a
			// stolen key can lock useless objects for a century.
			of.Condition = map[string]any{"NumericLessThanEquals": map[string]string{"s3:object-lock-remaining-retention-days": "2"}}
		}
		list = append(list, of)
	}
	return list
}

// A storeAccount is a user of the store.
type storeAccount struct {
	Name   string // at the server; the access key, if the installation chooses it
	Policy string // file of its policy, without .json
	Folder string // folder for its key, if the server creates the key
	key    StoreKey
}

// storeAccounts returns the users of the live identities: one per generation if the installation
// chooses keys; otherwise one per identity, because Amazon gives each user two keys.
func (p *Plan) storeAccounts(keys map[Identity]StoreKey) ([]storeAccount, error) {
	var all []storeAccount
	identities := p.Identities()
	if p.Store.Kind == AWS {
		identities = p.newest()
	}
	for _, i := range identities {
		if !i.Role.usesStore() {
			continue
		}
		account := storeAccount{Policy: string(i.Role), Folder: i.home()}
		if p.Store.Kind == AWS {
			account.Name = strings.ReplaceAll(p.Name+"-"+i.Folder(), "@", "-")
		} else {
			key, ok := keys[i]
			if !ok {
				return nil, fmt.Errorf("%s has no key of the store", i.Name())
			}
			account.Name, account.key = key.Access, key
		}
		all = append(all, account)
	}
	return all, nil
}

//go:embed s3-*.sh s3-*.md
var storeTexts embed.FS

// storeFiles returns the policies of the store, the server's configuration of keys, and the
// commands that apply it. keys are those of live identities; Amazon creates its own.
func storeFiles(p *Plan, keys map[Identity]StoreKey) ([]File, error) {
	accounts, err := p.storeAccounts(keys)
	if err != nil {
		return nil, err
	}
	var files []File
	switch p.Store.Kind {
	case AWS:
		files, err = p.awsFiles()
	case MinIO:
		files, err = p.minioFiles(accounts)
	case VersityGW:
		files, err = p.versityFiles(accounts)
	}
	if err != nil {
		return nil, err
	}
	bucket, prefix := p.Store.bucket()
	data := map[string]any{
		"Name": p.Name, "Bucket": bucket, "Prefix": prefix, "Region": p.Store.Region,
		"ObjectLock": p.Store.ObjectLock, "DeleteVersions": p.Store.DeleteVersions,
		"Endpoint": p.Store.Endpoint, "Host": p.Store.host(), "Port": p.Store.port(),
		"Accounts": accounts, "Roles": storeRoles, "Folder": strings.TrimSuffix(p.place("s3/README.md"), "/README.md"),
	}
	templates, err := template.New("").Option("missingkey=error").ParseFS(storeTexts, "s3-"+string(p.Store.Kind)+".*")
	if err != nil {
		return nil, err
	}
	for from, to := range map[string]string{".sh": "s3/apply.sh", ".md": "s3/README.md"} {
		var text strings.Builder
		if err := templates.ExecuteTemplate(&text, "s3-"+string(p.Store.Kind)+from, data); err != nil {
			return nil, fmt.Errorf("%s: %w", to, err)
		}
		files = append(files, File{Path: to, Data: []byte(text.String())})
	}
	return files, nil
}

// rolePolicies returns one file per role, with the permissions of its users.
func (p *Plan) rolePolicies() ([]File, error) {
	var files []File
	for _, role := range storeRoles {
		text, err := encodePolicy(p.Store.statements(role, nil))
		if err != nil {
			return nil, err
		}
		files = append(files, File{Path: "s3/" + string(role) + ".json", Data: text})
	}
	return files, nil
}

// awsFiles returns the permissions of users, and the operations on the bucket that are denied to
// everyone, even to those who have other rights in the account.
func (p *Plan) awsFiles() ([]File, error) {
	files, err := p.rolePolicies()
	if err != nil {
		return nil, err
	}
	bucket, prefix := p.Store.bucket()
	all, objects := "arn:aws:s3:::"+bucket, "arn:aws:s3:::"+bucket+"/"+prefix+"*"
	text, err := encodePolicy([]statement{
		{
			Sid: "NothingIsOverwritten", Effect: "Deny", Principal: "*", Action: []string{"s3:PutObject"}, Resource: []string{objects},
			Condition: map[string]any{"Null": map[string]string{"s3:if-none-match": "true"}},
		},
		{
			Sid: "NothingGoesInTheClear", Effect: "Deny", Principal: "*", Action: []string{"s3:*"}, Resource: []string{all, objects},
			Condition: map[string]any{"Bool": map[string]string{"aws:SecureTransport": "false"}},
		},
	})
	return append(files, File{Path: "s3/bucket-policy.json", Data: text}, File{Path: "s3/lifecycle.json", Data: []byte(awsLifecycle)}), err
}

// awsLifecycle ends versions that were deleted or overwritten.
const awsLifecycle = `{"Rules": [{
  "ID": "bctl", "Status": "Enabled", "Filter": {"Prefix": ""},
  "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
  "Expiration": {"ExpiredObjectDeleteMarker": true},
  "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 30}
}]}
`

// minioFiles returns one policy per role, and one file per account, from which mc reads its key: on
// a command line all users of the machine could see it.
func (p *Plan) minioFiles(accounts []storeAccount) ([]File, error) {
	files, err := p.rolePolicies()
	for _, a := range accounts {
		files = append(files, File{Path: "s3/accounts/" + a.Name, Data: []byte(a.key.Access + "\n" + a.key.Secret + "\n"), Secret: true})
	}
	return files, err
}

// joined adds statements for some users to a list. One that the list has for other users is
// extended.
func joined(list, more []statement, users []string) []statement {
	for _, s := range more {
		i := slices.IndexFunc(list, func(has statement) bool {
			return slices.Equal(has.Action, s.Action) && slices.Equal(has.Resource, s.Resource)
		})
		if i < 0 {
			s.Principal = map[string][]string{"AWS": nil}
			i, list = len(list), append(list, s)
		}
		of := list[i].Principal.(map[string][]string)
		of["AWS"] = append(of["AWS"], users...)
	}
	return list
}

// versityFiles returns the accounts in the format of the gateway's internal account service, and a
// bucket policy that names them.
func (p *Plan) versityFiles(accounts []storeAccount) ([]File, error) {
	type user struct {
		Access string `json:"access"`
		Secret string `json:"secret"`
		Role   string `json:"role"`
	}
	users := map[string]user{}
	var statements []statement
	for _, role := range storeRoles {
		var names []string
		for _, a := range accounts {
			if a.Policy == string(role) {
				users[a.Name] = user{a.key.Access, a.key.Secret, "user"}
				names = append(names, a.Name)
			}
		}
		statements = joined(statements, p.Store.statements(role, nil), names)
	}
	known, err := json.MarshalIndent(map[string]any{"accessAccounts": users}, "", "  ")
	if err != nil {
		return nil, err
	}
	// The gateway keeps the policy in an extended attribute of the bucket's directory, and ext4 has
	// less than 4 KiB for all of them. So nothing is indented, and statements are joined.
	policy, err := json.Marshal(policyDocument{policyVersion, statements})
	return []File{
		{Path: "s3/iam/users.json", Data: append(known, '\n'), Secret: true},
		{Path: "s3/bucket-policy.json", Data: append(policy, '\n')},
	}, err
}
