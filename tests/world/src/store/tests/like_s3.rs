//! The simulated client fails as the real one: object_store's S3 client, set up as Tidelog does, against a server that misbehaves.

use super::*;
use object_store::MultipartUpload;
use tidelog_tiering::store::faulty::Call;
use tidelog_tiering::store::{StoreSettings, open_store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16),
    /// 200 with this body.
    Body(&'static str),
    /// Closes the connection without a reply.
    Close,
    /// Resets it.
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ask {
    Put,
    PutIfAbsent,
    Get,
    Head,
    List,
    Delete,
    Begin,
    Part,
    Complete,
    Abort,
    Copy,
}

impl Ask {
    fn call(self) -> Call {
        match self {
            Self::Put => Call::Put,
            Self::PutIfAbsent => Call::PutIfAbsent,
            Self::Get => Call::Get,
            Self::Head => Call::Head,
            Self::List => Call::List,
            Self::Delete => Call::Delete,
            Self::Begin => Call::MultipartBegin,
            Self::Part => Call::MultipartPart,
            Self::Complete => Call::MultipartComplete,
            Self::Abort => Call::MultipartAbort,
            Self::Copy => Call::Copy,
        }
    }
}

const ASKS: [Ask; 11] = [
    Ask::Put,
    Ask::PutIfAbsent,
    Ask::Get,
    Ask::Head,
    Ask::List,
    Ask::Delete,
    Ask::Begin,
    Ask::Part,
    Ask::Complete,
    Ask::Abort,
    Ask::Copy,
];

const BEGUN: &str =
    "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
const ERROR: &str = "<Error><Code>InternalError</Code><Message>m</Message></Error>";
const DELETE_ERROR: &str = "<DeleteResult><Error><Key>k</Key><Code>InternalError</Code><Message>m</Message></Error></DeleteResult>";

/// Reads one request: its first line.
async fn request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some(end) = text.find("\r\n\r\n") {
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return text.lines().next().unwrap().to_owned();
            }
        }
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the client hung up");
        bytes.extend_from_slice(&buffer[..read]);
    }
}

async fn answer(mut stream: TcpStream, answer: Answer) {
    let (status, body) = match answer {
        Answer::Close => return,
        Answer::Reset => {
            let socket = stream.into_std().unwrap();
            let socket = tokio::net::TcpSocket::from_std_stream(socket);
            socket.set_zero_linger().unwrap();
            return;
        }
        Answer::Status(status) => (status, ""),
        Answer::Body(body) => (200, body),
    };
    let reply = format!(
        "HTTP/1.1 {status} x\r\netag: \"t\"\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await.unwrap();
}

/// The real client and its server, set up once: that is what takes long.
struct Real {
    client: Arc<dyn ObjectStore>,
    /// What is asked, what the server does with it, and how often it did.
    script: Arc<Mutex<(Ask, Answer, u64)>>,
}

/// What leads to the call in question goes well.
fn leads_to(ask: Ask, line: &str) -> Option<Answer> {
    match ask {
        Ask::Part | Ask::Abort | Ask::Complete if line.contains("uploads=") => {
            Some(Answer::Body(BEGUN))
        }
        Ask::Complete if line.contains("partnumber=") => Some(Answer::Status(200)),
        _ => None,
    }
}

impl Real {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = StoreSettings {
            endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
            path_style: Some(true),
            region: Some("us-east-1".to_owned()),
            access_key_id: Some("key".to_owned()),
            secret_access_key: Some("secret".to_owned()),
        };
        let client = open_store("s3://bucket", &settings).unwrap().store;
        let script = Arc::new(Mutex::new((Ask::Put, Answer::Close, 0)));
        let follow = Arc::clone(&script);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let line = request(&mut stream).await;
                let reply = {
                    let (ask, with, asked) = &mut *follow.lock();
                    leads_to(*ask, &line).unwrap_or_else(|| {
                        *asked += 1;
                        *with
                    })
                };
                answer(stream, reply).await;
            }
        });
        Self { client, script }
    }

    /// What the client says, and how often it asked the server.
    async fn says(&self, ask: Ask, with: Answer) -> (String, u64) {
        *self.script.lock() = (ask, with, 0);
        let said = said(&self.client, ask).await;
        let asked = self.script.lock().2;
        (said, asked)
    }
}

async fn ask(
    client: &Arc<dyn ObjectStore>,
    ask: Ask,
    trouble: impl FnOnce(),
) -> object_store::Result<()> {
    let path = Path::from("k");
    let mut upload: Option<Box<dyn MultipartUpload>> = None;
    if [Ask::Part, Ask::Complete, Ask::Abort].contains(&ask) {
        upload = Some(client.put_multipart(&path).await?);
    }
    if let (Some(upload), Ask::Complete) = (&mut upload, ask) {
        upload.put_part("part".into()).await?;
    }
    trouble();
    match (ask, upload) {
        (Ask::Put, _) => client.put(&path, "v".into()).await.map(drop),
        (Ask::PutIfAbsent, _) => {
            let options = PutOptions::from(PutMode::Create);
            client.put_opts(&path, "v".into(), options).await.map(drop)
        }
        (Ask::Get, _) => client.get(&path).await.map(drop),
        (Ask::Head, _) => client.head(&path).await.map(drop),
        (Ask::List, _) => client.list_with_delimiter(None).await.map(drop),
        (Ask::Copy, _) => client.copy(&path, &Path::from("copy")).await,
        (Ask::Delete, _) => client.delete(&path).await,
        (Ask::Begin, _) => client.put_multipart(&path).await.map(drop),
        (Ask::Part, Some(mut upload)) => upload.put_part("part".into()).await,
        (Ask::Complete, Some(mut upload)) => upload.complete().await.map(drop),
        (Ask::Abort, Some(mut upload)) => upload.abort().await,
        (_, None) => panic!("no upload"),
    }
}

fn kind(done: &object_store::Result<()>) -> String {
    match done {
        Ok(()) => "done".to_owned(),
        Err(error) => {
            let text = format!("{error:?}");
            text.split([' ', '(', '{'])
                .next()
                .unwrap_or_default()
                .to_owned()
        }
    }
}

async fn said(client: &Arc<dyn ObjectStore>, which: Ask) -> String {
    kind(&ask(client, which, || {}).await)
}

/// What the simulated client says, and how often it asked the store. The seed is one where the store did not do it.
async fn simulated(
    which: Ask,
    set: fn(&mut StoreFaults),
    counter: &str,
    seed: u64,
) -> (String, u64) {
    let rig = Rig::new(seed);
    let trouble = || rig.rates(set);
    let said = kind(&ask(&rig.client, which, trouble).await);
    (said, rig.count(counter))
}

/// Proves for every call that each status, and an error in a success, is the same error after as many requests.
#[tokio::test]
async fn statuses_are_the_same() {
    type Case = (Answer, &'static str, fn(&mut StoreFaults), &'static [Ask]);
    let cases: [Case; 7] = [
        (
            Answer::Status(503),
            "store.503",
            |r| r.status_503 = 1.0,
            &ASKS,
        ),
        (
            Answer::Status(500),
            "store.500",
            |r| r.status_500 = 1.0,
            &ASKS[..1],
        ),
        (
            Answer::Status(429),
            "store.429",
            |r| r.status_429 = 1.0,
            &ASKS[..6],
        ),
        (
            Answer::Status(408),
            "store.408",
            |r| r.status_408 = 1.0,
            &ASKS[..6],
        ),
        (
            Answer::Status(409),
            "store.409",
            |r| r.status_409 = 1.0,
            &[Ask::PutIfAbsent],
        ),
        (
            Answer::Body(DELETE_ERROR),
            "store.200-with-error",
            |r| r.error_body = 1.0,
            &[Ask::Delete],
        ),
        (
            Answer::Body(ERROR),
            "store.200-with-error",
            |r| r.error_body = 1.0,
            &[Ask::Complete, Ask::Copy],
        ),
    ];
    let server = Real::start().await;
    let mut said = Vec::new();
    for (with, _, _, asks) in cases {
        for which in asks {
            said.push(server.says(*which, with).await);
        }
    }
    // From here on time is simulated.
    tokio::time::pause();
    let mut said = said.into_iter();
    for (with, counter, set, asks) in cases {
        for which in asks {
            let real = said.next().unwrap();
            let mut same = false;
            for seed in 0..8 {
                same |= simulated(*which, set, counter, seed).await == real;
            }
            assert!(same, "{which:?} {with:?}: {real:?}");
        }
    }
}

/// Proves for every call that a lost reply is tried again exactly where the real client does.
#[tokio::test]
async fn lost_replies_are_the_same() {
    let server = Real::start().await;
    for which in ASKS {
        for with in [Answer::Close, Answer::Reset] {
            let (said, asked) = server.says(which, with).await;
            assert_eq!(said, "Generic", "{which:?} {with:?}");
            let failed = if matches!(with, Answer::Close) {
                RequestFailed::Closed
            } else {
                RequestFailed::Reset
            };
            let again = super::super::client::Request::of(which.call()).again(&failed.error("k"));
            assert_eq!(asked, 1 + u64::from(again), "{which:?} {with:?}");
        }
    }
}
