"""The words that synthetic prompts are made of: plain English, lower case, so that text is diverse and no word is an instruction."""

from typing import Final

_TEXT: Final = """
able about above accept account across act action active actual add address advance advice affair afternoon again against age agree
air alarm album alive allow almost alone along already also always among amount anchor ancient angle animal answer anxious apart
apple april arch area argue arm army around arrange arrive arrow art ask asleep atlas attach attempt attic august autumn avoid awake
away bake balance ball bamboo banana band bank bar bare barn base basic basket battle beach beam bean bear beat beautiful because
become bed bee before begin behave behind believe bell below belt bench bend beneath berry beside best better between beyond bicycle
big bird birth bitter black blade blank blanket blend block blood bloom blow blue board boat body bold bone book border borrow both
bottle bottom bounce bowl box branch brave bread break breath breeze brick bridge brief bright bring broad bronze brother brown
brush bucket build bundle burn bus bush busy butter button buy cabin cable cake call calm camel camera camp canal candle canoe
canvas cap captain car carbon card care carpet carry cart carve case castle catch cattle cause cave ceiling cell center central
century certain chain chair chalk chance change chapter charge chase cheap check cheer cheese cherry chest chicken chief child
choice choose circle city claim clay clean clear clerk clever cliff climb clock close cloth cloud clover club coach coal coast coat
coffee coin cold collect color column comb come comfort common compare complete concert connect contain continue control cook cool
copper copy coral corn corner correct cost cotton cough count country couple course cousin cover cow craft crane cream create creek
crew crisp crop cross crowd crown cry cup curious current curtain curve custom cut cycle daily damp dance danger dark dash date
daughter dawn day dead deal dear debt december decide deep deer defend degree delay deliver dense depend depth desert design desk
detail develop diamond differ dig dinner direct dirt discover dish distance dive divide doctor dog dollar door double doubt down
dozen draft dragon draw dream dress drift drink drive drop drum dry duck dust duty eager eagle ear early earn earth east easy eat
echo edge effect effort egg eight either elbow elder electric elegant element elephant eleven else empty enemy engine enjoy enough
enter equal escape evening event ever every exact example except excite exist expect explain explore express extra eye fabric face
fact factor fade fail faint fair faith fall family famous fancy far farm fast father favor fear feather february feed feel fellow
fence fern ferry fever few field fierce fifteen fifty fight figure fill film final find fine finger finish fire firm first fish fit
five fix flag flame flash flat flavor fleet flight float flock flood floor flour flow flower flute fly fog fold follow food fool
foot force forest forget fork form forty forward fossil found four fox frame free fresh friday friend frog front frost fruit fuel
full fun funny fur future gain galaxy gallery game garden garlic gate gather general gentle giant gift ginger girl give glad glass
globe glove glow goat gold good goose govern grace grain grand grant grape grass gravel gray great green greet grey grip ground
group grow guard guess guest guide guitar habit hair half hall hammer hand handle happen happy harbor hard harvest hat hawk hay head
heal hear heart heat heavy hedge height help hen herb herd here hero hidden high hill hint history hold hole hollow holy home honest
honey hope horizon horn horse hospital host hotel hour house how huge human humble hundred hungry hunt hurry husband ice idea image
imagine inch include indeed industry inform ink inner insect inside instead invent invite iron island ivory ivy jacket january jar
jaw jazz jewel job join joke journey joy judge juice july jump june jungle just keen keep kettle key kick kind king kitchen kite
knee knife knock knot know label labor lace ladder lady lake lamb lamp land lane language lantern large last late laugh laundry lava
law lawn lay lazy lead leaf league learn least leather leave left leg lemon lend length lens less lesson letter level lever library
lift light lily limb limit line linen link lion lip list listen little live lively lizard load local lock lodge log lonely long look
loose lose loud love low loyal luck lumber lunch machine magic magnet mail main major make mango manner many map maple marble march
margin mark market marry marsh mask mason master match matter meadow meal mean measure meat medal meet melody melt member memory
mend mention merchant mercy merry message metal method middle midnight might mild mile milk mill million mind mine minor mint minute
mirror miss mist mix model modern moment monday money monkey month moon morning moss most mother motion motor mountain mouse mouth
move much mud muscle museum music must mystery nail name narrow nation native nature near neat neck need needle neighbor nephew nest
net never new news next nice night nine noble noise none noon north nose note notice november now number nurse nut oak oar oasis
object observe ocean october odd offer office often oil old olive once onion only open opera orange orbit orchard order organ other
otter out oval oven over owl own oxygen oyster pack paddle page paint pair palace pale palm panel paper parade parcel parent park
parrot part party pass past paste patch path patient pattern pause pay peace peach pearl pebble pen pencil people pepper perfect
perhaps period person phone photo piano pick picnic picture piece pigeon pile pillow pilot pin pine pink pioneer pipe pitch place
plain plan plane planet plant plate play please plenty plot plow plum pocket poem poet point polar pole polish polite pond pony pool
poor popular porch port post pot potato pound pour powder power practice praise prepare present press pretty price pride prince
print prize problem produce promise proof proper protect proud prove public pull pump pumpkin pure purple purpose push put puzzle
quality quarter queen question quick quiet quilt quite rabbit race radio raft rail rain raise ranch range rapid rare rather raven
raw reach read ready real reason receive record red reef reflect region relax remain remember remind rent repair repeat reply report
rescue rest result return reward rhythm ribbon rice rich ride right ring ripe rise river road roast robin rock roll roof room root
rope rose rough round route row royal rubber rug ruin rule run rush rust sacred saddle safe sail salad salmon salt same sample sand
saturday sauce save scale scene scent school science score scout screen sea search season seat second secret section seed seek seem
select self sell send sense september serve settle seven several shade shadow shake shallow shape share sharp shed sheep sheet shelf
shell shelter shield shift shine ship shirt shoe shop shore short shout show shower sick side sign signal silence silk silver
similar simple since sing single sister six size skate sketch skill skin skirt sky slate sleep sleeve slice slide slight slope slow
small smart smell smile smoke smooth snail snake snow soap social soft soil soldier solid solve some song soon sort sound soup south
space spare spark speak special speed spell spend sphere spice spider spin spirit splash split spoon sport spot spread spring square
squirrel stable stage stairs stamp stand star start state station stay steady steam steel steep stem step stick still stitch stone
stop store storm story stove straight strange straw stream street strength stretch string strong student study sudden sugar suggest
suit summer sun sunday supper supply support sure surface surprise swan sweet swift swim swing symbol system table tail tailor take
tale talent talk tall tank tape target task taste teach team tell temple ten tent test thank theater theory thick thin thing think
third thirst thirty thread three throat through throw thumb thunder thursday ticket tide tidy tiger timber time tin tiny tired title
toast today together tomato tongue tool tooth torch total touch tough tour toward tower town track trade trail train travel treat
tree triangle tribe trick trip trouble truck true trumpet trust truth tuesday tulip tune tunnel turn turtle twelve twenty twice twin
twist type umbrella uncle under unique unit until upper urban useful usual valley value vanilla vapor vast velvet verse vessel
village vine violet violin visit voice volcano voyage wagon waist wait wake walk wall walnut want warm wash waste watch water wave
wax way weak wealth wear weather weave wednesday week weigh welcome well west wet whale wheat wheel when where while whisper whistle
white whole wide wild willow win wind window wine wing winter wire wise wish wolf wonder wood wool word work world worry worth wrap
wrist write yard yarn year yellow yesterday yield young zebra zero
"""
WORDS: Final[tuple[str, ...]] = tuple(_TEXT.split())
